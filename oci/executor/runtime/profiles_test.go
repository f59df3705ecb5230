package runtime

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
)

// The seccomp profile is most of what the executor keeps in memory of a container, and is
// kept once for all containers that have it: also for those that are read from disk at
// their next exec, after an upgrade or a crash.
func TestContainersShareTheirProfile(t *testing.T) {
	x, err := newBuiltins(t.TempDir(), t.TempDir(), slog.New(slog.DiscardHandler), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	profile := func() *configs.Seccomp {
		return &configs.Seccomp{DefaultAction: configs.Errno, Architectures: []string{"amd64"}, Syscalls: []*configs.Syscall{
			{Name: "read", Action: configs.Allow},
			{Name: "personality", Action: configs.Allow, Args: []*configs.Arg{{Index: 0, Value: 8, Op: configs.EqualTo}}},
		}}
	}
	first := profile()
	x.shareProfile(first)
	for _, id := range []string{"a", "b"} {
		written := profile() // as another executor has written it
		config := &configs.Config{Rootfs: t.TempDir(), Seccomp: written, Namespaces: configs.Namespaces{{Type: configs.NEWNS}},
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
	if x.shareProfile(other); other.Syscalls[0].Name != "write" {
		t.Error("a different profile was taken for the same one")
	}
}
