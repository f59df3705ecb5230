package nri

import (
	"encoding/json"
	"testing"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
)

// FuzzAdjust applies arbitrary adjustments of a plugin: each is applied or rejected, and the result
// can be encoded.
func FuzzAdjust(f *testing.F) {
	all := &api.ContainerAdjustment{}
	all.SetArgs([]string{"a"})
	all.AddEnv("B", "two")
	all.AddMount(&api.Mount{Destination: "/a", Type: "bind", Source: "/src", Options: []string{"bind", "rshared"}})
	all.AddHooks(&api.Hooks{Prestart: []*api.Hook{{Path: "/1", Timeout: api.Int(1)}}, Poststop: []*api.Hook{{Path: "/6"}}})
	all.AddRlimit("RLIMIT_NOFILE", 20, 10)
	all.AddDevice(&api.LinuxDevice{Path: "/dev/new", Type: "c", Major: 1, Minor: 3})
	all.AddOrReplaceNamespace(&api.LinuxNamespace{Type: "network", Path: "/new"})
	all.SetLinuxMemoryLimit(100)
	all.AddLinuxHugepageLimit("2MB", 5)
	all.SetLinuxScheduler(&api.LinuxScheduler{Policy: api.LinuxSchedulerPolicy_SCHED_BATCH, Nice: 2})
	all.SetLinuxIOPriority(&api.LinuxIOPriority{Class: api.IOPrioClass_IOPRIO_CLASS_BE, Priority: 3})
	all.SetLinuxSeccompPolicy(&api.LinuxSeccomp{DefaultAction: "SCMP_ACT_ERRNO", DefaultErrno: &api.OptionalUInt32{Value: 38}, Syscalls: []*api.LinuxSyscall{{Names: []string{"read"}}}})
	all.AddCDIDevice(&api.CDIDevice{Name: "vendor.com/class=one"})
	for _, a := range []*api.ContainerAdjustment{
		all, {}, {Linux: &api.LinuxContainerAdjustment{}}, {Mounts: []*api.Mount{{}}, Env: []*api.KeyValue{{}}, Rlimits: []*api.POSIXRlimit{{}}, CDIDevices: []*api.CDIDevice{{}}},
		{Linux: &api.LinuxContainerAdjustment{Devices: []*api.LinuxDevice{{}}, Namespaces: []*api.LinuxNamespace{{}}, SeccompPolicy: &api.LinuxSeccomp{Syscalls: []*api.LinuxSyscall{{}}}}},
		{Linux: &api.LinuxContainerAdjustment{Resources: &api.LinuxResources{Memory: &api.LinuxMemory{}, Cpu: &api.LinuxCPU{}, Devices: []*api.LinuxDeviceCgroup{{}}, HugepageLimits: []*api.HugepageLimit{{}}}}},
		{Linux: &api.LinuxContainerAdjustment{Resources: &api.LinuxResources{Pids: &api.LinuxPids{}, BlockioClass: &api.OptionalString{Value: "x"}, RdtClass: &api.OptionalString{Value: "x"}}}},
	} {
		data, err := proto.Marshal(a)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a := &api.ContainerAdjustment{}
		if proto.Unmarshal(data, a) != nil {
			t.Skip("no message")
		}
		p := &Plugins{o: Options{SwapLimit: true, InjectCDI: func(*specs.Spec, []string) error { return nil }}}
		for _, s := range []*specs.Spec{before(), {Process: &specs.Process{}}} {
			if err := p.adjust(s, a); err != nil {
				continue
			}
			if _, err := json.Marshal(s); err != nil {
				t.Errorf("what comes out cannot be written: %v", err)
			}
		}
	})
}
