package spec

import (
	"io"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func build(Input) (*specs.Spec, error) { return &specs.Spec{}, nil }
func resolveUser(*cri.LinuxContainerSecurityContext, string, io.Reader, io.Reader) (User, error) {
	return User{}, nil
}
func execProcess(p *specs.Process, args []string, tty bool) *specs.Process { return p }
func rawEnv(*specs.Process) [][]byte                                       { return nil }
func seccompOf(*cri.LinuxContainerSecurityContext) (cri.SecurityProfile_ProfileType, string, error) {
	return 0, "", nil
}
func defaultSeccomp([]string, string) *specs.LinuxSeccomp                         { return nil }
func parseSeccomp([]byte, []string, string) (*specs.LinuxSeccomp, error)          { return nil, nil }
func resources(*cri.LinuxContainerResources, Host) (*specs.LinuxResources, error) { return nil, nil }
func mergeResources(old, change *cri.LinuxContainerResources) *cri.LinuxContainerResources {
	return old
}
func cgroupsPath(parent, id string, systemd bool) string       { return parent + "/" + id }
func sysctls(*cri.PodSandboxConfig) (map[string]string, error) { return nil, nil }
func defaultCapabilities() []string                            { return nil }
