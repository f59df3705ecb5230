package executor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
)

// The seccomp profile is most of what is known of a container, and is there once for all
// that have it: also for those that an upgrade or a crash had forgotten, which are read
// from disk for their next exec.
func TestContainersShareTheirProfile(t *testing.T) {
	x := newExecutor(t).builtins
	profile := func() *configs.Seccomp {
		return &configs.Seccomp{DefaultAction: configs.Errno, Architectures: []string{"amd64"}, Syscalls: []*configs.Syscall{
			{Name: "read", Action: configs.Allow},
			{Name: "personality", Action: configs.Allow, Args: []*configs.Arg{{Index: 0, Value: 8, Op: configs.EqualTo}}},
		}}
	}
	first := profile()
	x.intern(first)
	for _, id := range []string{"a", "b"} {
		config := &configs.Config{Rootfs: t.TempDir(), Seccomp: profile(), Namespaces: configs.Namespaces{{Type: configs.NEWNS}},
			Cgroups: &cgroups.Cgroup{Path: "/crisp-test-never-made/" + id, Resources: &cgroups.Resources{}}}
		lc, err := libcontainer.Create(x.root, id, config)
		if err != nil {
			t.Fatal(err)
		}
		state, err := lc.State()
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(state)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(x.root, id, "state.json"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		view, err := x.of(id).borrow()
		if err != nil {
			t.Fatal(err)
		}
		seccomp := view.Config().Seccomp
		if seccomp == nil || len(seccomp.Syscalls) != 2 || seccomp.DefaultAction != configs.Errno || seccomp.Syscalls[1].Args[0].Value != 8 {
			t.Fatalf("container %s has the profile %+v", id, seccomp)
		}
		if &seccomp.Syscalls[0] != &first.Syscalls[0] {
			t.Errorf("container %s has a profile of its own", id)
		}
	}
	other := profile()
	other.Syscalls[0].Name = "write"
	if x.intern(other); other.Syscalls[0].Name != "write" {
		t.Error("another profile was taken for the same")
	}
}
