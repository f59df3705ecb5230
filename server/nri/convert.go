package nri

import (
	"cmp"
	"maps"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Pod is a sandbox as plugins see it.
type Pod struct {
	ID      string
	Config  *cri.PodSandboxConfig
	Handler string
	IPs     []string
	NetNS   string // path; "" = the host's

	// Overhead and Resources are the kubelet's latest values; unless nil they replace those in
	// Config.
	Overhead, Resources *cri.LinuxContainerResources
}

// A Container is a container as plugins see it.
type Container struct {
	ID, PodID string
	Config    *cri.ContainerConfig
	Spec      *specs.Spec
	ImageID   string
	ImageRef  string

	State                            cri.ContainerState
	Pid                              int
	CreatedAt, StartedAt, FinishedAt time.Time
	ExitCode                         int32
	Reason, Message                  string
}

// An Update changes the limits of a container. Unset fields change nothing.
type Update struct {
	Container     string
	Resources     *specs.LinuxResources
	IgnoreFailure bool // the plugin does not require it
}

func convert[A, B any](list []A, one func(A) B) []B {
	out := make([]B, len(list))
	for i, a := range list {
		out[i] = one(a)
	}
	return out
}

func podOf(p Pod) *api.PodSandbox {
	linux := p.Config.GetLinux()
	pod := &api.PodSandbox{
		Id:             p.ID,
		Name:           p.Config.GetMetadata().GetName(),
		Uid:            p.Config.GetMetadata().GetUid(),
		Namespace:      p.Config.GetMetadata().GetNamespace(),
		Labels:         maps.Clone(p.Config.GetLabels()),
		Annotations:    maps.Clone(p.Config.GetAnnotations()),
		RuntimeHandler: p.Handler,
		Ips:            p.IPs,
		Linux: &api.LinuxPodSandbox{
			PodOverhead:  limitsOf(cmp.Or(p.Overhead, linux.GetOverhead())),
			PodResources: limitsOf(cmp.Or(p.Resources, linux.GetResources())),
			CgroupParent: linux.GetCgroupParent(),
		},
	}
	if p.NetNS != "" {
		pod.Linux.Namespaces = []*api.LinuxNamespace{{Type: string(specs.NetworkNamespace), Path: p.NetNS}}
	}
	return pod
}

var states = map[cri.ContainerState]api.ContainerState{
	cri.ContainerState_CONTAINER_CREATED: api.ContainerState_CONTAINER_CREATED,
	cri.ContainerState_CONTAINER_RUNNING: api.ContainerState_CONTAINER_RUNNING,
	cri.ContainerState_CONTAINER_EXITED:  api.ContainerState_CONTAINER_STOPPED,
}

func containerOf(c Container) *api.Container {
	asked := c.Config.GetImage()
	out := &api.Container{
		Id:            c.ID,
		PodSandboxId:  c.PodID,
		Name:          c.Config.GetMetadata().GetName(),
		State:         states[c.State],
		Labels:        maps.Clone(c.Config.GetLabels()),
		Annotations:   maps.Clone(c.Config.GetAnnotations()),
		Pid:           uint32(c.Pid),
		CreatedAt:     nanoseconds(c.CreatedAt),
		StartedAt:     nanoseconds(c.StartedAt),
		FinishedAt:    nanoseconds(c.FinishedAt),
		ExitCode:      c.ExitCode,
		StatusReason:  c.Reason,
		StatusMessage: c.Message,
		Image:         &api.Image{Name: cmp.Or(asked.GetUserSpecifiedImage(), asked.GetImage()), Digest: c.ImageRef, ConfigDigest: c.ImageID},
	}
	for _, d := range c.Config.GetCDIDevices() {
		out.CDIDevices = append(out.CDIDevices, &api.CDIDevice{Name: d.Name})
	}
	describe(out, c.Spec)
	return out
}

// describe sets the fields taken from the specification.
func describe(out *api.Container, spec *specs.Spec) {
	if spec == nil {
		return
	}
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	maps.Copy(out.Annotations, spec.Annotations)
	out.Mounts = api.FromOCIMounts(spec.Mounts)
	out.Hooks = api.FromOCIHooks(spec.Hooks)
	out.Linux = &api.LinuxContainer{}
	if p := spec.Process; p != nil {
		out.Args, out.Env = api.DupStringSlice(p.Args), validEnv(p.Env)
		out.User = &api.User{Uid: p.User.UID, Gid: p.User.GID, AdditionalGids: p.User.AdditionalGids}
		for _, l := range p.Rlimits {
			out.Rlimits = append(out.Rlimits, &api.POSIXRlimit{Type: l.Type, Hard: l.Hard, Soft: l.Soft})
		}
		out.Linux.OomScoreAdj = api.Int(p.OOMScoreAdj)
		out.Linux.IoPriority = api.FromOCILinuxIOPriority(p.IOPriority)
		out.Linux.Scheduler = api.FromOCILinuxScheduler(p.Scheduler)
	}
	if l := spec.Linux; l != nil {
		out.Linux.Namespaces = api.FromOCILinuxNamespaces(l.Namespaces)
		out.Linux.Devices = api.FromOCILinuxDevices(l.Devices)
		out.Linux.Resources = resourcesOf(l.Resources)
		out.Linux.CgroupsPath = l.CgroupsPath
		if l.Seccomp != nil {
			out.Linux.SeccompPolicy = api.FromOCILinuxSeccomp(l.Seccomp)
		}
		out.Linux.Sysctl = maps.Clone(l.Sysctl)
		out.Linux.NetDevices = api.FromOCILinuxNetDevices(l.NetDevices)
	}
}

func resourcesOf(r *specs.LinuxResources) *api.LinuxResources {
	return api.FromOCILinuxResources(r, nil)
}

// limitsOf converts the resources of a pod. They are a sum that applies to nothing, and zero
// means not set.
func limitsOf(r *cri.LinuxContainerResources) *api.LinuxResources {
	if r == nil {
		return nil
	}
	out := &api.LinuxResources{Memory: &api.LinuxMemory{}, Cpu: &api.LinuxCPU{Cpus: r.CpusetCpus, Mems: r.CpusetMems}, Unified: maps.Clone(r.Unified)}
	if r.CpuShares != 0 {
		out.Cpu.Shares = api.UInt64(r.CpuShares)
	}
	if r.CpuQuota != 0 {
		out.Cpu.Quota = api.Int64(r.CpuQuota)
	}
	if r.CpuPeriod != 0 {
		out.Cpu.Period = api.UInt64(r.CpuPeriod)
	}
	if r.MemoryLimitInBytes != 0 {
		out.Memory.Limit = api.Int64(r.MemoryLimitInBytes)
	}
	for _, l := range r.HugepageLimits {
		out.HugepageLimits = append(out.HugepageLimits, &api.HugepageLimit{PageSize: l.PageSize, Limit: l.Limit})
	}
	return out
}

func updatesOf(list []*api.ContainerUpdate) []Update {
	var out []Update
	for _, u := range list {
		if r := u.GetLinux().GetResources().ToOCI(); r != nil { // the library has nil for an update that no plugin changed
			out = append(out, Update{Container: u.ContainerId, Resources: compact(r), IgnoreFailure: u.IgnoreFailure})
		}
	}
	return out
}

// compact removes groups without a set field: the library adds them empty.
func compact(r *specs.LinuxResources) *specs.LinuxResources {
	if r.Memory != nil && *r.Memory == (specs.LinuxMemory{}) {
		r.Memory = nil
	}
	if r.CPU != nil && *r.CPU == (specs.LinuxCPU{}) {
		r.CPU = nil
	}
	return r
}

func nanoseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// validEnv returns an environment that protobuf can carry. Bytes that are not UTF-8 become
// replacement characters; in the container they stay unchanged.
func validEnv(env []string) []string {
	out := make([]string, len(env))
	for i, kv := range env {
		out[i] = strings.ToValidUTF8(kv, "\uFFFD")
	}
	return out
}
