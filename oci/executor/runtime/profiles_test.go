package runtime

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
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
	first := x.share(&sharedProfile{config: profile()})
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
	if x.share(&sharedProfile{config: other}).Syscalls[0].Name != "write" {
		t.Error("a different profile was taken for the same one")
	}
}

// A profile is decoded once, and written into a container's state as any other is.
func TestProfileInEachForm(t *testing.T) {
	b, err := newBuiltins(t.TempDir(), t.TempDir(), slog.New(slog.DiscardHandler), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &Runtimes{builtins: b}
	text := func(i int) []byte {
		return fmt.Appendf(nil, `{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":%d,"syscalls":[{"names":["read","write"],"action":"SCMP_ACT_ALLOW"}]}`, i)
	}
	spec, err := r.Profile(text(1))
	if again, _ := r.Profile(text(1)); err != nil || spec == nil || again != spec {
		t.Fatalf("the profile was decoded twice, or not: %v", err)
	}
	if other, _ := r.Profile(text(2)); other == spec || *other.DefaultErrnoRet != 2 {
		t.Error("a different profile was taken for the same one")
	}
	for _, none := range []string{"null", "{}"} {
		if spec, err := r.Profile([]byte(none)); err != nil || spec != nil && spec.DefaultAction != "" {
			t.Errorf("%s was taken for a profile: %v", none, err)
		}
	}
	if _, err := r.Profile([]byte("1")); err == nil {
		t.Error("a number was taken for a profile")
	}
	known, err := b.profileOf(spec)
	if err != nil {
		t.Fatal(err)
	}
	if same, err := b.profileOf(&specs.LinuxSeccomp{DefaultAction: spec.DefaultAction, DefaultErrnoRet: spec.DefaultErrnoRet, Syscalls: spec.Syscalls}); err != nil || same != known {
		t.Errorf("an equal profile is not shared: %v", err)
	}
	own := *known
	for _, config := range []configs.Config{{Rootfs: "/a", Labels: []string{`"config":{`}}, {}} {
		var states [2]libcontainer.State
		for i, profile := range []*configs.Seccomp{known, &own} {
			config.Seccomp = profile
			data, err := b.encode(libcontainer.State{BaseState: libcontainer.BaseState{ID: `"config":{`, Config: config}})
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(data, &states[i]); err != nil {
				t.Fatalf("%v: %s", err, data)
			}
		}
		if !reflect.DeepEqual(states[0], states[1]) || len(states[0].Config.Seccomp.Syscalls) != 2 {
			t.Errorf("%+v was read back, %+v of one that is not known", states[0], states[1])
		}
	}
	for i := range 2 * maxProfiles {
		if _, err := r.Profile(text(i)); err != nil {
			t.Fatal(err)
		}
	}
	if len(b.profiles) > maxProfiles {
		t.Errorf("%d profiles are kept", len(b.profiles))
	}
}
