package runtime

import (
	"log/slog"
	"testing"

	"github.com/opencontainers/runc/libcontainer/configs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// After a container with a user namespace, even one that cannot be converted, the devices of the next
// one still belong to root.
func TestOwnDevices(t *testing.T) {
	r, err := NewRuntimes(t.TempDir(), t.TempDir(), slog.New(slog.DiscardHandler), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := r.builtins
	try := func(linux specs.Linux) (*configs.Config, error) {
		linux.CgroupsPath = "/crisp-test-never-made/c"
		linux.Namespaces = append(linux.Namespaces, specs.LinuxNamespace{Type: specs.MountNamespace})
		return b.config("c", &specs.Spec{Version: specs.Version, Root: &specs.Root{Path: t.TempDir()}, Linux: &linux}, false)
	}
	convert := func(linux specs.Linux) *configs.Config {
		config, err := try(linux)
		if err != nil {
			t.Fatal(err)
		}
		return config
	}
	ids := []specs.LinuxIDMapping{{HostID: 200000, Size: 65536}}
	user := specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.UserNamespace}}, UIDMappings: ids, GIDMappings: ids}
	mapped := convert(user)
	broken := user
	broken.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: "SCMP_ACT_NONE"}}}
	if _, err := try(broken); err == nil {
		t.Error("a filter with an unknown action is converted")
	}
	plain := convert(specs.Linux{})
	if len(plain.Devices) == 0 || len(plain.Devices) != len(mapped.Devices) {
		t.Fatalf("there are %d and %d devices", len(plain.Devices), len(mapped.Devices))
	}
	for i, d := range plain.Devices {
		if d.Uid != 0 || d.Gid != 0 || mapped.Devices[i].Uid != 200000 {
			t.Errorf("%s belongs to %d:%d, and in the user namespace to %d", d.Path, d.Uid, d.Gid, mapped.Devices[i].Uid)
		}
	}
}

// The mappings of a user namespace that a container joins are not read if the spec has them: that takes
// two forks.
func TestKnownMappings(t *testing.T) {
	r, err := NewRuntimes(t.TempDir(), t.TempDir(), slog.New(slog.DiscardHandler), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	users := specs.LinuxNamespace{Type: specs.UserNamespace, Path: "/nowhere/user"}
	spec := &specs.Spec{Version: specs.Version, Root: &specs.Root{Path: t.TempDir()}, Linux: &specs.Linux{
		CgroupsPath: "/crisp-test-never-made/c", Namespaces: []specs.LinuxNamespace{{Type: specs.MountNamespace}, users},
	}}
	if _, err := r.builtins.config("c", spec, false); err == nil {
		t.Fatal("the mappings of a namespace that is not there were read")
	}
	spec.Linux.UIDMappings = []specs.LinuxIDMapping{{HostID: 200000, Size: 65536}}
	spec.Linux.GIDMappings = []specs.LinuxIDMapping{{HostID: 300000, Size: 65536}}
	config, err := r.builtins.config("c", spec, false)
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := config.HostRootUID()
	gid, _ := config.HostRootGID()
	if path := config.Namespaces.PathOf(configs.NEWUSER); path != users.Path || uid != 200000 || gid != 300000 || spec.Linux.Namespaces[1] != users {
		t.Errorf("it joins %q as %d:%d; the spec has %+v", path, uid, gid, spec.Linux.Namespaces)
	}
}
