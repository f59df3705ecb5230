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
