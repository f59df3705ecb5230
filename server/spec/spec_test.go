package spec_test

//lint:file-ignore SA1019 CRI keeps the strings of profiles for older clients

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/testing/protocmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/userns"
	"github.com/crisp-cri/crisp/server/spec"
)

// An update changes the fields that it sets and leaves the others as they were.
func TestMergeResources(t *testing.T) {
	old := &cri.LinuxContainerResources{CpuShares: 512, CpuQuota: 1000, OomScoreAdj: 3, CpusetCpus: "0", Unified: map[string]string{"a.b": "1", "c.d": "2"}}
	change := &cri.LinuxContainerResources{CpuQuota: -1, MemoryLimitInBytes: 9, Unified: map[string]string{"a.b": "3"}}
	want := &cri.LinuxContainerResources{CpuShares: 512, CpuQuota: -1, OomScoreAdj: 3, CpusetCpus: "0", MemoryLimitInBytes: 9, Unified: map[string]string{"a.b": "3", "c.d": "2"}}
	if diff := cmp.Diff(want, spec.MergeResources(old, change), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if old.CpuQuota != 1000 || old.Unified["a.b"] != "1" {
		t.Errorf("the old ones changed: %v", old)
	}
	if got := spec.MergeResources(nil, nil); got == nil {
		t.Error("nothing merged with nothing is nil, want empty")
	}
}

// A limit of memory plus swap that equals the limit of memory means no swap. It still means that
// when memory alone gets another limit, in either direction.
func TestMergeResourcesWithoutSwap(t *testing.T) {
	for _, tt := range []struct{ memory, swap, change, want int64 }{
		{100, 100, 200, 200}, {100, 100, 50, 50}, {100, 100, -1, -1}, {100, 100, 0, 100},
		{100, 150, 120, 150}, {100, -1, 200, -1}, {-1, -1, 200, -1}, {0, 0, 200, 0}, {100, 0, 200, 0},
	} {
		old := &cri.LinuxContainerResources{MemoryLimitInBytes: tt.memory, MemorySwapLimitInBytes: tt.swap}
		got := spec.MergeResources(old, &cri.LinuxContainerResources{MemoryLimitInBytes: tt.change})
		if got.MemorySwapLimitInBytes != tt.want {
			t.Errorf("%+v: the limit with swap is %d", tt, got.MemorySwapLimitInBytes)
		}
		if _, err := spec.Resources(got, spec.Host{CgroupV2: true, SwapLimit: true}); err != nil {
			t.Errorf("%+v: %v", tt, err)
		}
	}
	both := &cri.LinuxContainerResources{MemoryLimitInBytes: 200, MemorySwapLimitInBytes: 300}
	if got := spec.MergeResources(&cri.LinuxContainerResources{MemoryLimitInBytes: 100, MemorySwapLimitInBytes: 100}, both); got.MemorySwapLimitInBytes != 300 {
		t.Errorf("the limit with swap is %d, not the one that was asked for", got.MemorySwapLimitInBytes)
	}
}

// Impossible limits are refused before they reach a cgroup.
func TestResourcesRefused(t *testing.T) {
	for _, r := range []*cri.LinuxContainerResources{
		{CpuShares: -1}, {CpuPeriod: -1},
		{MemoryLimitInBytes: 10, MemorySwapLimitInBytes: 9},
		{MemorySwapLimitInBytes: 9}, {MemoryLimitInBytes: -1, MemorySwapLimitInBytes: 9},
		{OomScoreAdj: 1001}, {OomScoreAdj: -1001},
		{HugepageLimits: []*cri.HugepageLimit{{PageSize: "2MB", Limit: 1}}},
		{Unified: map[string]string{"../../cgroup.procs": "1"}},
	} {
		if got, err := spec.Resources(r, spec.Host{CgroupV2: true}); !errors.Is(err, fault.Invalid) {
			t.Errorf("%v: got %v, %v, want Invalid", r, got, err)
		}
	}
	// A crispd without cgroups limits nothing, whatever an agent on a host of cgroup v2 asks for.
	if got, err := spec.Resources(&cri.LinuxContainerResources{Unified: map[string]string{"memory.oom.group": "1"}}, spec.Host{IDs: new(userns.Map)}); err != nil || got.Unified != nil {
		t.Errorf("without cgroups: got %v, %v", got.Unified, err)
	}
	if got, err := spec.Resources(&cri.LinuxContainerResources{Unified: map[string]string{"memory.oom.group": "1"}}, spec.Host{IDs: new(userns.Map), CgroupV2: true}); err != nil || got.Unified["memory.oom.group"] != "1" {
		t.Errorf("with delegated cgroups: got %v, %v", got, err)
	}
}

// The deprecated string and the new field mean the same, and the new one takes precedence.
func TestSeccompOf(t *testing.T) {
	for _, tt := range []struct {
		sc   *cri.LinuxContainerSecurityContext
		want string
	}{
		{nil, "Unconfined "},
		{&cri.LinuxContainerSecurityContext{SeccompProfilePath: "unconfined"}, "Unconfined "},
		{&cri.LinuxContainerSecurityContext{SeccompProfilePath: "runtime/default"}, "RuntimeDefault "},
		{&cri.LinuxContainerSecurityContext{SeccompProfilePath: "localhost//a/b"}, "Localhost /a/b"},
		{&cri.LinuxContainerSecurityContext{SeccompProfilePath: "localhost/a"}, "error"},
		{&cri.LinuxContainerSecurityContext{SeccompProfilePath: "nonsense"}, "error"},
		{&cri.LinuxContainerSecurityContext{SeccompProfilePath: "unconfined", Seccomp: &cri.SecurityProfile{}}, "RuntimeDefault "},
		{&cri.LinuxContainerSecurityContext{Seccomp: &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: "/x"}}, "Localhost /x"},
		{&cri.LinuxContainerSecurityContext{Seccomp: &cri.SecurityProfile{ProfileType: 7}}, "error"},
		{&cri.LinuxContainerSecurityContext{Privileged: true, Seccomp: &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost}}, "Unconfined "},
	} {
		kind, file, err := spec.SeccompOf(tt.sc)
		got := kind.String() + " " + file
		if err != nil {
			got = "error"
		}
		if got != tt.want {
			t.Errorf("%v: got %q (%v), want %q", tt.sc, got, err, tt.want)
		}
	}
}

// The system calls of a container depend on its capabilities.
func TestDefaultSeccomp(t *testing.T) {
	verdict := func(p *specs.LinuxSeccomp, name string) string {
		for _, s := range p.Syscalls {
			if slices.Contains(s.Names, name) && len(s.Args) == 0 {
				return string(s.Action)
			}
		}
		for _, s := range p.Syscalls {
			if slices.Contains(s.Names, name) {
				return "conditional"
			}
		}
		return string(p.DefaultAction)
	}
	plain := spec.DefaultSeccomp(spec.DefaultCapabilities(), "amd64")
	admin := spec.DefaultSeccomp([]string{"CAP_SYS_ADMIN"}, "amd64")
	for _, tt := range []struct {
		call        string
		plain, root string
	}{
		{"read", "SCMP_ACT_ALLOW", "SCMP_ACT_ALLOW"},
		{"arch_prctl", "SCMP_ACT_ALLOW", "SCMP_ACT_ALLOW"},
		{"mount", "SCMP_ACT_ERRNO", "SCMP_ACT_ALLOW"},
		{"clone", "conditional", "SCMP_ACT_ALLOW"},
		{"clone3", "SCMP_ACT_ERRNO", "SCMP_ACT_ALLOW"},
		{"chroot", "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"}, // CAP_SYS_CHROOT is a default one
		{"socket", "conditional", "conditional"},
		{"personality", "conditional", "conditional"},
		{"keyctl", "SCMP_ACT_ERRNO", "SCMP_ACT_ERRNO"},
		{"kexec_load", "SCMP_ACT_ERRNO", "SCMP_ACT_ERRNO"},
		{"io_uring_setup", "SCMP_ACT_ERRNO", "SCMP_ACT_ERRNO"},
		{"userfaultfd", "SCMP_ACT_ERRNO", "SCMP_ACT_ERRNO"},
		{"swapcontext", "SCMP_ACT_ERRNO", "SCMP_ACT_ERRNO"},
		{"lsm_list_modules", "SCMP_ACT_ALLOW", "SCMP_ACT_ALLOW"}, // systemd and libapparmor ask
	} {
		if got := verdict(plain, tt.call); got != tt.plain {
			t.Errorf("%s with the default capabilities: %s, want %s", tt.call, got, tt.plain)
		}
		if got := verdict(admin, tt.call); got != tt.root {
			t.Errorf("%s with CAP_SYS_ADMIN: %s, want %s", tt.call, got, tt.root)
		}
	}
	for _, s := range plain.Syscalls {
		if slices.Contains(s.Names, "clone3") && (s.ErrnoRet == nil || *s.ErrnoRet != 38) {
			t.Errorf("clone3 answers %v, want ENOSYS: C libraries do not fall back otherwise", s.ErrnoRet)
		}
	}
	if len(spec.DefaultSeccomp(nil, runtime.GOARCH).Architectures) == 0 {
		t.Errorf("no architecture for %s", runtime.GOARCH)
	}
}

// Two of the kernel's address families are not for containers; the kernel uses only
// the lower half of the argument.
func TestDefaultSeccompSockets(t *testing.T) {
	allowed := func(family uint64) bool {
		for _, s := range spec.DefaultSeccomp(nil, "amd64").Syscalls {
			if !slices.Contains(s.Names, "socket") || s.Action != specs.ActAllow {
				continue
			}
			matches := true
			for _, a := range s.Args {
				if a.Index != 0 || a.Op != specs.OpMaskedEqual {
					t.Fatalf("a condition that this test cannot judge: %+v", a)
				}
				matches = matches && family&a.Value == a.ValueTwo
			}
			if matches {
				return true
			}
		}
		return false
	}
	for family := range uint64(48) {
		want := family != unix.AF_ALG && family != unix.AF_VSOCK
		for _, upper := range []uint64{0, 1 << 32, 0xffffffff << 32} {
			if got := allowed(upper | family); got != want {
				t.Errorf("family %d as %#x: allowed %t, want %t", family, upper|family, got, want)
			}
		}
	}
}

// An environment that JSON would damage is passed as bytes.
func TestRawEnv(t *testing.T) {
	if got := spec.RawEnv(&specs.Process{Env: []string{"A=ü"}}); got != nil {
		t.Errorf("got %q for UTF-8, want nil", got)
	}
	got := spec.RawEnv(&specs.Process{Env: []string{"A=b", "C=\xff"}})
	if len(got) != 2 || string(got[1]) != "C=\xff" {
		t.Errorf("got %q", got)
	}
}

// Names that no environment can have are rejected, not passed on in part.
func TestEnvRefused(t *testing.T) {
	for _, kv := range []*cri.KeyValue{{Key: ""}, {Key: "A=B"}, {Key: "A\x00"}, {Key: "A", Value: []byte("b\x00c")}} {
		in := spec.Input{Container: &cri.ContainerConfig{Command: []string{"x"}, Envs: []*cri.KeyValue{kv}}, Sandbox: &cri.PodSandboxConfig{}}
		if _, err := spec.Build(in); !errors.Is(err, fault.Invalid) {
			t.Errorf("%q: got %v, want Invalid", kv.Key, err)
		}
	}
}

// An empty HOME of an image or a request would have the runtime look into the image's passwd file, with more
// rights than the container's.
func TestHomeIsNeverEmpty(t *testing.T) {
	got, err := spec.Build(spec.Input{
		User:      spec.User{Home: "/home/web"},
		Image:     v1.ImageConfig{Env: []string{"HOME="}},
		Container: &cri.ContainerConfig{Command: []string{"x"}, Envs: []*cri.KeyValue{{Key: "HOME"}}},
		Sandbox:   &cri.PodSandboxConfig{},
	})
	if err != nil || !slices.Contains(got.Process.Env, "HOME=/home/web") {
		t.Errorf("got %+v, %v", got, err)
	}
}

// An exec is the container's process with other arguments. The container's own must not change.
func TestExecProcess(t *testing.T) {
	p := &specs.Process{Args: []string{"a"}, Env: []string{"X=1"}, Cwd: "/w", ConsoleSize: &specs.Box{}}
	got := spec.ExecProcess(p, []string{"b", "c"}, true)
	if want := (&specs.Process{Args: []string{"b", "c"}, Env: []string{"X=1", "TERM=xterm"}, Cwd: "/w", Terminal: true}); !cmp.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
	if p.Terminal || len(p.Env) != 1 || p.Args[0] != "a" {
		t.Errorf("the container's process changed: %+v", p)
	}
}

// The systemd driver's path has slice, prefix and name; the other one's is a path.
func TestCgroupsPath(t *testing.T) {
	if got := spec.CgroupsPath("/kubepods/burstable/podx", "id", false); got != "/kubepods/burstable/podx/id" {
		t.Error(got)
	}
	if got := spec.CgroupsPath("/kubepods.slice/kubepods-podx.slice", "id", true); got != "kubepods-podx.slice:crisp:id" {
		t.Error(got)
	}
	if got := spec.CgroupsPath("../x", "id", false); strings.Contains(got, "..") {
		t.Error(got)
	}
}

// Values of an image must not be truncated at a NUL byte either.
func TestNULOfAnImage(t *testing.T) {
	for want, image := range map[string]v1.ImageConfig{
		`argument 1 "a\x00b"`:           {Entrypoint: []string{"sh"}, Cmd: []string{"a\x00b"}},
		`environment variable "SECRET"`: {Cmd: []string{"sh"}, Env: []string{"SECRET=a\x00b"}},
		`working directory "/a\x00b"`:   {Cmd: []string{"sh"}, WorkingDir: "/a\x00b"},
	} {
		_, err := spec.Build(spec.Input{
			Container: &cri.ContainerConfig{Metadata: &cri.ContainerMetadata{Name: "c"}}, Sandbox: &cri.PodSandboxConfig{},
			Image: image, Root: "/root", CgroupsPath: "/c",
		})
		if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want+" holds a NUL byte") || strings.Contains(err.Error(), "SECRET=") {
			t.Errorf("the error is %v, want that %s is at fault", err, want)
		}
	}
}
