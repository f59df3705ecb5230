package nri

import (
	"slices"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/runtime-tools/generate"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
)

// adjust applies the plugins' adjustments to a container's specification. The library does it,
// except for the limits that it omits.
func (p *Plugins) adjust(spec *specs.Spec, want *api.ContainerAdjustment) error {
	if want == nil {
		return nil
	}
	if spec.Linux == nil {
		spec.Linux = &specs.Linux{}
	}
	g := generate.SpecGenerator(&editor{spec},
		generate.WithBlockIOResolver(noBlockIO),
		generate.WithRdtResolver(noRDT),
		generate.WithCDIDeviceInjector(p.o.InjectCDI),
	)
	if err := g.Adjust(want); err != nil {
		return err
	}
	p.adjustMemory(spec.Linux.Resources, want.GetLinux().GetResources().GetMemory())
	if code := want.GetLinux().GetSeccompPolicy().GetDefaultErrno().Get(); code != nil {
		errno := uint(*code)
		spec.Linux.Seccomp.DefaultErrnoRet = &errno
	}
	spec.Process.Rlimits = lastOf(spec.Process.Rlimits)
	return nil
}

// adjustMemory sets the limits that the library does not. The library also uses a memory limit
// as the limit of memory and swap together.
func (p *Plugins) adjustMemory(res *specs.LinuxResources, want *api.LinuxMemory) {
	if res == nil || want == nil {
		return
	}
	if res.Memory == nil {
		res.Memory = &specs.LinuxMemory{}
	}
	m := res.Memory
	replace(&m.Swap, want.Swap.Get())
	replace(&m.Reservation, want.Reservation.Get())
	replace(&m.Swappiness, want.Swappiness.Get())
	replace(&m.DisableOOMKiller, want.DisableOomKiller.Get())
	if !p.o.SwapLimit {
		m.Swap = nil
	}
	if *m == (specs.LinuxMemory{}) {
		res.Memory = nil
	}
}

func replace[T any](old **T, v *T) {
	if v != nil {
		*old = v
	}
}

// lastOf keeps the last limit of each type: the library appends.
func lastOf(limits []specs.POSIXRlimit) []specs.POSIXRlimit {
	var out []specs.POSIXRlimit
	for i, l := range limits {
		if !slices.ContainsFunc(limits[i+1:], func(later specs.POSIXRlimit) bool { return later.Type == l.Type }) {
			out = append(out, l)
		}
	}
	return out
}

// noBlockIO and noRDT refuse class names, which a runtime would look up in its own files.
// (RDT can be configured without a class.)
func noBlockIO(class string) (*specs.LinuxBlockIO, error) {
	return nil, fault.Invalid.Errorf("block I/O class %q: there are no classes", class)
}

func noRDT(class string) (*specs.LinuxIntelRdt, error) {
	return nil, fault.Invalid.Errorf("RDT class %q: there are no classes", class)
}

// An editor implements the small part of an OCI specification generator through which the
// library applies its adjustments.
type editor struct{ spec *specs.Spec }

func (e *editor) Spec() *specs.Spec { return e.spec }

func (e *editor) AddAnnotation(key, value string) {
	if e.spec.Annotations == nil {
		e.spec.Annotations = map[string]string{}
	}
	e.spec.Annotations[key] = value
}

func (e *editor) RemoveAnnotation(key string) { delete(e.spec.Annotations, key) }

func (e *editor) SetProcessArgs(args []string)  { e.spec.Process.Args = args }
func (e *editor) SetProcessOOMScoreAdj(adj int) { e.spec.Process.OOMScoreAdj = &adj }
func (e *editor) ClearProcessEnv()              { e.spec.Process.Env = nil }
func (e *editor) AddProcessEnv(name, value string) {
	e.spec.Process.Env = append(e.spec.Process.Env, name+"="+value)
}
func (e *editor) SetLinuxCgroupsPath(path string) { e.spec.Linux.CgroupsPath = path }
func (e *editor) SetLinuxRootPropagation(p string) error {
	e.spec.Linux.RootfsPropagation = p
	return nil
}

// Mounts.

func (e *editor) Mounts() []specs.Mount  { return e.spec.Mounts }
func (e *editor) ClearMounts()           { e.spec.Mounts = nil }
func (e *editor) AddMount(m specs.Mount) { e.spec.Mounts = append(e.spec.Mounts, m) }
func (e *editor) RemoveMount(dest string) {
	e.spec.Mounts = without(e.spec.Mounts, func(m specs.Mount) bool { return m.Destination == dest })
}

// Devices.

func (e *editor) AddDevice(d specs.LinuxDevice) {
	e.RemoveDevice(d.Path)
	e.spec.Linux.Devices = append(e.spec.Linux.Devices, d)
}

func (e *editor) RemoveDevice(path string) {
	e.spec.Linux.Devices = without(e.spec.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Path == path })
}

// Namespaces.

func (e *editor) AddOrReplaceLinuxNamespace(kind, path string) error {
	typ, err := namespace(kind)
	if err != nil {
		return err
	}
	ns := specs.LinuxNamespace{Type: typ, Path: path}
	for i := range e.spec.Linux.Namespaces {
		if e.spec.Linux.Namespaces[i].Type == typ {
			e.spec.Linux.Namespaces[i] = ns
			return nil
		}
	}
	e.spec.Linux.Namespaces = append(e.spec.Linux.Namespaces, ns)
	return nil
}

func (e *editor) RemoveLinuxNamespace(kind string) error {
	typ, err := namespace(kind)
	if err != nil {
		return err
	}
	e.spec.Linux.Namespaces = without(e.spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == typ })
	return nil
}

func namespace(kind string) (specs.LinuxNamespaceType, error) {
	typ := specs.LinuxNamespaceType(kind)
	known := []specs.LinuxNamespaceType{
		specs.PIDNamespace, specs.NetworkNamespace, specs.MountNamespace, specs.IPCNamespace,
		specs.UTSNamespace, specs.UserNamespace, specs.CgroupNamespace, specs.TimeNamespace,
	}
	if !slices.Contains(known, typ) {
		return "", fault.Invalid.Errorf("namespace %q is not one of %q", kind, known)
	}
	return typ, nil
}

func (e *editor) AddLinuxSysctl(key, value string) {
	if e.spec.Linux.Sysctl == nil {
		e.spec.Linux.Sysctl = map[string]string{}
	}
	e.spec.Linux.Sysctl[key] = value
}

func (e *editor) RemoveLinuxSysctl(key string) { delete(e.spec.Linux.Sysctl, key) }

// Hooks.

func (e *editor) hooks() *specs.Hooks {
	if e.spec.Hooks == nil {
		e.spec.Hooks = &specs.Hooks{}
	}
	return e.spec.Hooks
}

// AddPreStartHook adds to a list that OCI has deprecated; plugins may still use it.
func (e *editor) AddPreStartHook(h specs.Hook) {
	//lint:ignore SA1019 as said above
	e.hooks().Prestart = append(e.hooks().Prestart, h)
}

func (e *editor) AddPostStartHook(h specs.Hook) { e.hooks().Poststart = append(e.hooks().Poststart, h) }
func (e *editor) AddPostStopHook(h specs.Hook)  { e.hooks().Poststop = append(e.hooks().Poststop, h) }

// Limits.

func (e *editor) resources() *specs.LinuxResources {
	if e.spec.Linux.Resources == nil {
		e.spec.Linux.Resources = &specs.LinuxResources{}
	}
	return e.spec.Linux.Resources
}

func (e *editor) cpu() *specs.LinuxCPU {
	if e.resources().CPU == nil {
		e.resources().CPU = &specs.LinuxCPU{}
	}
	return e.resources().CPU
}

func (e *editor) memory() *specs.LinuxMemory {
	if e.resources().Memory == nil {
		e.resources().Memory = &specs.LinuxMemory{}
	}
	return e.resources().Memory
}

func (e *editor) SetLinuxResourcesCPUCpus(cpus string)             { e.cpu().Cpus = cpus }
func (e *editor) SetLinuxResourcesCPUMems(mems string)             { e.cpu().Mems = mems }
func (e *editor) SetLinuxResourcesCPUPeriod(period uint64)         { e.cpu().Period = &period }
func (e *editor) SetLinuxResourcesCPUQuota(quota int64)            { e.cpu().Quota = &quota }
func (e *editor) SetLinuxResourcesCPUShares(shares uint64)         { e.cpu().Shares = &shares }
func (e *editor) SetLinuxResourcesCPURealtimePeriod(period uint64) { e.cpu().RealtimePeriod = &period }
func (e *editor) SetLinuxResourcesCPURealtimeRuntime(time int64)   { e.cpu().RealtimeRuntime = &time }
func (e *editor) SetLinuxResourcesMemoryLimit(limit int64)         { e.memory().Limit = &limit }
func (e *editor) SetLinuxResourcesMemorySwap(swap int64)           { e.memory().Swap = &swap }

func (e *editor) AddLinuxResourcesHugepageLimit(size string, limit uint64) {
	r := e.resources()
	r.HugepageLimits = without(r.HugepageLimits, func(l specs.LinuxHugepageLimit) bool { return l.Pagesize == size })
	r.HugepageLimits = append(r.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: size, Limit: limit})
}

func (e *editor) AddLinuxResourcesUnified(key, value string) {
	if e.resources().Unified == nil {
		e.resources().Unified = map[string]string{}
	}
	e.resources().Unified[key] = value
}

func (e *editor) AddLinuxResourcesDevice(allow bool, typ string, major, minor *int64, access string) {
	r := e.resources()
	r.Devices = append(r.Devices, specs.LinuxDeviceCgroup{Allow: allow, Type: typ, Major: major, Minor: minor, Access: access})
}

// without returns a copy of list without the items that drop selects: plugins see the original.
func without[T any](list []T, drop func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), drop)
}
