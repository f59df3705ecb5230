package server

import (
	"maps"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/server/cdi"
	"github.com/crisp-cri/crisp/server/hooks"
	"github.com/crisp-cri/crisp/server/spec"
)

// inject adds what files on this node configure: CDI devices, then the hooks of
// the hooks directories, in this order so that hooks see the container as it
// will be.
func (s *Server) inject(built *specs.Spec, h spec.Host, config *cri.ContainerConfig, sandbox *cri.PodSandboxConfig) error {
	var asked []string
	for _, d := range config.CDIDevices {
		asked = append(asked, d.Name)
	}
	names, err := cdi.Names(asked, config.Annotations)
	if err != nil {
		return err
	}
	if err := cdi.Inject(built, s.current.Load().CDISpecDirs, names, spec.BindsNodes(built, h)); err != nil {
		return err
	}
	annotations := map[string]string{}
	maps.Copy(annotations, sandbox.GetAnnotations())
	maps.Copy(annotations, config.Annotations)
	return hooks.Inject(built, s.current.Load().HooksDirs, hooks.Container{
		Annotations: annotations,
		Command:     built.Process.Args[0],
		BindMounts:  slices.ContainsFunc(config.Mounts, func(m *cri.Mount) bool { return m.HostPath != "" }),
	})
}
