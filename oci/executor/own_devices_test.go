package executor

import (
	"testing"

	"github.com/opencontainers/runc/libcontainer/configs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// After a container with a user namespace the devices of the next one still belong to root.
func TestOwnDevices(t *testing.T) {
	b := newExecutor(t).builtins
	convert := func(linux specs.Linux) *configs.Config {
		linux.CgroupsPath = "/crisp-test-never-made/c"
		linux.Namespaces = append(linux.Namespaces, specs.LinuxNamespace{Type: specs.MountNamespace})
		config, err := b.config("c", &specs.Spec{Version: specs.Version, Root: &specs.Root{Path: t.TempDir()}, Linux: &linux}, false)
		if err != nil {
			t.Fatal(err)
		}
		return config
	}
	ids := []specs.LinuxIDMapping{{HostID: 200000, Size: 65536}}
	mapped := convert(specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.UserNamespace}}, UIDMappings: ids, GIDMappings: ids})
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
