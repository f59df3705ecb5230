package spec

import (
	"slices"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A SandboxInput is the argument of BuildSandbox.
type SandboxInput struct {
	Host     Host
	Sandbox  *cri.PodSandboxConfig
	Root     string // absolute path of the root directory, with the program in it
	Program  string // path of the program in Root
	Hostname string

	// Namespaces are as in Input.
	Namespaces map[string]string
	Files      Files // those with a path are mounted

	ProcessLabel, MountLabel string // SELinux; "" = none
}

// The settings of a sandbox's own container, as other runtimes have them for their pause
// containers.
const (
	sandboxUser   = 65534 // the usual one without rights
	sandboxScore  = -998  // the last of the pod to be OOM-killed
	sandboxShares = 2     // the least
)

// BuildSandbox returns the specification of the container with which a shim begins a pod: its
// sandbox is that container's, or the virtual machine that it is in. Unlike the specification of
// a container it has the hostname and the sysctls: the shim's kernel may not be this machine's.
func BuildSandbox(in SandboxInput) (*specs.Spec, error) {
	list, err := namespaces(Input{Host: in.Host, Container: &cri.ContainerConfig{}, Sandbox: in.Sandbox, Namespaces: in.Namespaces})
	if err != nil {
		return nil, err
	}
	score, shares := max(sandboxScore, in.Host.MinOOMScoreAdj), uint64(sandboxShares)
	s := &specs.Spec{
		Version:  specs.Version,
		Hostname: in.Hostname,
		Root:     &specs.Root{Path: in.Root, Readonly: true},
		Process: &specs.Process{
			Args: []string{in.Program}, Cwd: "/", Env: []string{"PATH=/"},
			User:            specs.User{UID: sandboxUser, GID: sandboxUser},
			Capabilities:    &specs.LinuxCapabilities{},
			NoNewPrivileges: true,
			SelinuxLabel:    in.ProcessLabel,
			OOMScoreAdj:     &score,
		},
		Mounts: sandboxMounts(in),
		Linux: &specs.Linux{
			Namespaces: list,
			Sysctl:     in.Sandbox.GetLinux().GetSysctls(),
			MountLabel: in.MountLabel,
			Resources: &specs.LinuxResources{
				CPU:     &specs.LinuxCPU{Shares: &shares},
				Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
			},
		},
	}
	if !slices.ContainsFunc(list, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.UTSNamespace }) {
		s.Hostname = "" // the host's cannot be set
	}
	return s, nil
}

func sandboxMounts(in SandboxInput) []specs.Mount {
	list := commonMounts("ro")
	if in.Files.Shm != "" {
		list = append(list, specs.Mount{Destination: "/dev/shm", Type: "bind", Source: in.Files.Shm, Options: []string{"rbind", "ro", "nosuid", "nodev", "noexec"}})
	}
	for _, f := range []struct{ source, at string }{
		{in.Files.ResolvConf, "/etc/resolv.conf"}, {in.Files.Hosts, "/etc/hosts"}, {in.Files.Hostname, "/etc/hostname"},
	} {
		if f.source != "" {
			list = append(list, specs.Mount{Destination: f.at, Type: "bind", Source: f.source, Options: []string{"rbind", "ro", "nosuid", "nodev", "noexec"}})
		}
	}
	return list
}

// SizeAnnotations returns a pod's resources as the annotations by which virtual machines get their
// size: "sandbox-cpu-period", "sandbox-cpu-quota", "sandbox-cpu-shares" and "sandbox-memory", in
// microseconds, shares and bytes; nil if the client sent none.
func SizeAnnotations(linux *cri.LinuxPodSandboxConfig) map[string]string {
	r := linux.GetResources()
	if r == nil {
		return nil
	}
	return map[string]string{
		"sandbox-cpu-period": strconv.FormatInt(r.CpuPeriod, 10), "sandbox-cpu-quota": strconv.FormatInt(r.CpuQuota, 10),
		"sandbox-cpu-shares": strconv.FormatInt(r.CpuShares, 10), "sandbox-memory": strconv.FormatInt(r.MemoryLimitInBytes, 10),
	}
}
