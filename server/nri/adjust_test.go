package nri

import (
	"errors"
	"slices"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
)

func ptr[T any](v T) *T { return &v }

// before is a specification with something of each kind in it.
func before() *specs.Spec {
	return &specs.Spec{
		Annotations: map[string]string{"kept": "1", "gone": "2"},
		Mounts:      []specs.Mount{{Destination: "/proc", Type: "proc"}, {Destination: "/gone"}, {Destination: "/a/b", Source: "/old"}},
		Process: &specs.Process{
			Args: []string{"old"}, Env: []string{"A=1", "B=2", "RAW=\xff", "C=3"}, OOMScoreAdj: ptr(1),
			Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1, Hard: 2}, {Type: "RLIMIT_CORE"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/old",
			Devices:     []specs.LinuxDevice{{Path: "/dev/gone", Type: "c"}, {Path: "/dev/kept", Type: "c"}},
			Namespaces:  []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: "/old"}, {Type: specs.IPCNamespace}, {Type: specs.MountNamespace}},
			Resources: &specs.LinuxResources{
				CPU:            &specs.LinuxCPU{Shares: ptr(uint64(2))},
				HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 1}},
			},
		},
	}
}

// Each kind of adjustment: added, replaced and removed.
func TestAdjust(t *testing.T) {
	a := &api.ContainerAdjustment{}
	a.SetArgs([]string{"new", "args"})
	a.AddEnv("B", "two")
	a.RemoveEnv("C")
	a.AddEnv("D", "4")
	a.AddAnnotation("new", "3")
	a.RemoveAnnotation("gone")
	a.AddMount(&api.Mount{Destination: "/a", Type: "bind", Source: "/src", Options: []string{"bind", "rw"}})
	a.RemoveMount("/gone")
	a.RemoveMount("/a/b")
	a.AddHooks(&api.Hooks{
		Prestart: []*api.Hook{{Path: "/1"}}, CreateRuntime: []*api.Hook{{Path: "/2", Args: []string{"2", "x"}}}, CreateContainer: []*api.Hook{{Path: "/3"}},
		StartContainer: []*api.Hook{{Path: "/4"}}, Poststart: []*api.Hook{{Path: "/5"}}, Poststop: []*api.Hook{{Path: "/6"}},
	})
	a.AddRlimit("RLIMIT_NOFILE", 20, 10)
	a.AddDevice(&api.LinuxDevice{Path: "/dev/new", Type: "c", Major: 1, Minor: 3})
	a.RemoveDevice("/dev/gone")
	a.AddOrReplaceNamespace(&api.LinuxNamespace{Type: "network", Path: "/new"})
	a.AddOrReplaceNamespace(&api.LinuxNamespace{Type: "pid"})
	a.RemoveNamespace(&api.LinuxNamespace{Type: "ipc"})
	a.SetLinuxSysctl("net.core.somaxconn", "7")
	a.SetLinuxCgroupsPath("/new")
	a.SetLinuxOomScoreAdj(ptr(9))
	a.SetLinuxCPUQuota(50_000)
	a.SetLinuxCPUPeriod(100_000)
	a.SetLinuxCPUShares(3)
	a.SetLinuxCPUSetCPUs("0-1")
	a.SetLinuxCPUSetMems("0")
	a.SetLinuxMemoryLimit(100)
	a.SetLinuxMemorySwap(300)
	a.SetLinuxMemoryReservation(50)
	a.SetLinuxPidLimits(12)
	a.AddLinuxHugepageLimit("2MB", 5)
	a.AddLinuxUnified("memory.high", "77")
	a.SetLinuxIOPriority(&api.LinuxIOPriority{Class: api.IOPrioClass_IOPRIO_CLASS_BE, Priority: 3})
	a.SetLinuxScheduler(&api.LinuxScheduler{Policy: api.LinuxSchedulerPolicy_SCHED_BATCH, Nice: 2})
	a.SetLinuxSeccompPolicy(&api.LinuxSeccomp{
		DefaultAction: "SCMP_ACT_ERRNO", DefaultErrno: &api.OptionalUInt32{Value: 38}, Architectures: []string{"SCMP_ARCH_X86_64"},
		Syscalls: []*api.LinuxSyscall{{Names: []string{"read"}, Action: "SCMP_ACT_ALLOW"}},
	})
	a.AddCDIDevice(&api.CDIDevice{Name: "vendor.com/class=one"})

	var injected []string
	p := &Plugins{o: Options{SwapLimit: true, InjectCDI: func(_ *specs.Spec, names []string) error { injected = names; return nil }}}
	got := before()
	if err := p.adjust(got, a); err != nil {
		t.Fatal(err)
	}
	want := &specs.Spec{
		Annotations: map[string]string{"kept": "1", "new": "3"},
		Mounts:      []specs.Mount{{Destination: "/a", Type: "bind", Source: "/src", Options: []string{"bind", "rw"}}, {Destination: "/proc", Type: "proc"}},
		Hooks: &specs.Hooks{
			//lint:ignore SA1019 NRI still has prestart hooks
			Prestart: []specs.Hook{{Path: "/1"}}, CreateRuntime: []specs.Hook{{Path: "/2", Args: []string{"2", "x"}}}, CreateContainer: []specs.Hook{{Path: "/3"}},
			StartContainer: []specs.Hook{{Path: "/4"}}, Poststart: []specs.Hook{{Path: "/5"}}, Poststop: []specs.Hook{{Path: "/6"}},
		},
		Process: &specs.Process{
			Args: []string{"new", "args"}, Env: []string{"A=1", "B=two", "RAW=\xff", "D=4"}, OOMScoreAdj: ptr(9),
			Rlimits:    []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}, {Type: "RLIMIT_NOFILE", Soft: 10, Hard: 20}},
			IOPriority: &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_BE, Priority: 3},
			Scheduler:  &specs.Scheduler{Policy: specs.SchedBatch, Nice: 2},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/new",
			Sysctl:      map[string]string{"net.core.somaxconn": "7"},
			Devices:     []specs.LinuxDevice{{Path: "/dev/kept", Type: "c"}, {Path: "/dev/new", Type: "c", Major: 1, Minor: 3}},
			Namespaces:  []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: "/new"}, {Type: specs.MountNamespace}, {Type: specs.PIDNamespace}},
			Resources: &specs.LinuxResources{
				CPU:            &specs.LinuxCPU{Shares: ptr(uint64(3)), Quota: ptr(int64(50_000)), Period: ptr(uint64(100_000)), Cpus: "0-1", Mems: "0"},
				Memory:         &specs.LinuxMemory{Limit: ptr(int64(100)), Swap: ptr(int64(300)), Reservation: ptr(int64(50))},
				Pids:           &specs.LinuxPids{Limit: ptr(int64(12))},
				HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 5}},
				Unified:        map[string]string{"memory.high": "77"},
				Devices:        []specs.LinuxDeviceCgroup{{Allow: true, Type: "c", Major: ptr(int64(1)), Minor: ptr(int64(3)), Access: "rw"}},
			},
			Seccomp: &specs.LinuxSeccomp{
				DefaultAction: specs.ActErrno, DefaultErrnoRet: ptr(uint(38)), Architectures: []specs.Arch{specs.ArchX86_64}, Flags: []specs.LinuxSeccompFlag{},
				Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{}}},
			},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("adjusted specification (-want +got):\n%s", diff)
	}
	if !slices.Equal(injected, []string{"vendor.com/class=one"}) {
		t.Errorf("injected CDI devices are %q", injected)
	}
}

// On a host that does not limit swap no swap limit is set.
func TestAdjustWithoutSwap(t *testing.T) {
	a := &api.ContainerAdjustment{}
	a.SetLinuxMemoryLimit(100)
	got := before()
	if err := (&Plugins{}).adjust(got, a); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&specs.LinuxMemory{Limit: ptr(int64(100))}, got.Linux.Resources.Memory); diff != "" {
		t.Errorf("memory (-want +got):\n%s", diff)
	}
}

// An empty adjustment changes nothing.
func TestAdjustNothing(t *testing.T) {
	for _, a := range []*api.ContainerAdjustment{nil, {}, {Linux: &api.LinuxContainerAdjustment{Resources: &api.LinuxResources{Memory: &api.LinuxMemory{}, Cpu: &api.LinuxCPU{}}}}} {
		got := before()
		if err := (&Plugins{}).adjust(got, a); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before(), got); diff != "" {
			t.Errorf("after %v (-want +got):\n%s", a, diff)
		}
	}
}

func TestAdjustRefused(t *testing.T) {
	failing := &Plugins{o: Options{InjectCDI: func(*specs.Spec, []string) error { return fault.Invalid.Errorf("no such device") }}}
	for name, change := range map[string]func(a *api.ContainerAdjustment){
		"block I/O class": func(a *api.ContainerAdjustment) { a.SetLinuxBlockIOClass("fast") },
		"RDT class":       func(a *api.ContainerAdjustment) { a.SetLinuxRDTClass("gold") },
		"namespace":       func(a *api.ContainerAdjustment) { a.AddOrReplaceNamespace(&api.LinuxNamespace{Type: "net"}) },
		"CDI device":      func(a *api.ContainerAdjustment) { a.AddCDIDevice(&api.CDIDevice{Name: "vendor.com/class=none"}) },
	} {
		a := &api.ContainerAdjustment{}
		change(a)
		if err := failing.adjust(before(), a); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
}
