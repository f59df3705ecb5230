package runtime

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	libseccomp "github.com/seccomp/libseccomp-golang"
)

// The seccomp profile is most of what the executor keeps in memory of a container, and is
// kept once for all containers that have it: also for those that are read from disk at
// their next exec, after an upgrade or a crash.
func TestContainersShareTheirProfile(t *testing.T) {
	x, err := newBuiltins(t.TempDir(), t.TempDir(), slog.New(slog.DiscardHandler), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	stale := &configs.Syscall{Name: libseccomp.Rule(make([]byte, 8)), Action: configs.Allow}
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
		written.Syscalls = append([]*configs.Syscall{stale}, written.Syscalls...)
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
		if seccomp == nil || len(seccomp.Syscalls) != 3 || seccomp.DefaultAction != configs.Errno || seccomp.Syscalls[2].Args[0].Value != 8 {
			t.Fatalf("container %s has the profile %+v", id, seccomp)
		}
		if rule := seccomp.Syscalls[0]; !givesProgram(rule) || rule.Name == stale.Name {
			t.Errorf("container %s has the program %q", id, rule.Name)
		}
		if &seccomp.Syscalls[0] != &first.Syscalls[0] {
			t.Errorf("container %s has a profile of its own", id)
		}
	}
	other := profile()
	other.Syscalls[0].Name = "write"
	if x.shareProfile(other); other.Syscalls[1].Name != "write" || other.Syscalls[0].Name == first.Syscalls[0].Name {
		t.Error("a different profile was taken for the same one")
	}
}

// A profile whose filter cannot be compiled in the executor is left to the container's
// first process, whose error fails the start; the log has the reason once.
func TestProfileThatCannotBeCompiled(t *testing.T) {
	var log bytes.Buffer
	b := &builtins{log: slog.New(slog.NewTextHandler(&log, nil)), profiles: make(map[[32]byte]*sharedProfile)}
	for range 2 {
		p := &configs.Seccomp{DefaultAction: configs.Errno, Syscalls: []*configs.Syscall{{Name: "write", Action: configs.Notify}}}
		if b.shareProfile(p); len(p.Syscalls) != 1 || p.Syscalls[0].Name != "write" {
			t.Errorf("the profile has become %+v", p)
		}
	}
	if n := strings.Count(log.String(), "cannot be used for the write syscall"); n != 1 {
		t.Errorf("the log says it %d times:\n%s", n, &log)
	}
}
