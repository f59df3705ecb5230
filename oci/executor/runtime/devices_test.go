package runtime

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/cgroups"
	_ "github.com/opencontainers/cgroups/devices" // lets managers set them
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/cgroups/fs2"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/test/testenv"
)

// Cgroups with the same rules for devices have one program, others another one; a later change of one
// does not change the rest.
func TestDeviceProgramIsShared(t *testing.T) {
	testenv.NeedRoot(t, "it makes cgroups")
	testenv.Need(t, "cgroup2-anywhere")
	list, err := kernel.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	root := list[slices.IndexFunc(list, kernel.Hierarchy.V2)].Dir
	d := devicePrograms{all: make(map[string]*os.File)}
	group := func(name string, rules ...*devices.Rule) (cgroups.Manager, *cgroups.Cgroup, string) {
		t.Helper()
		dir := filepath.Join(root, fmt.Sprintf("crisp-test-%d-%s", os.Getpid(), name))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		config := &cgroups.Cgroup{Resources: &cgroups.Resources{Devices: rules}}
		m, err := fs2.NewManager(config, dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.set(m, config, dir); err != nil {
			t.Fatal(err)
		}
		if config.Resources.SkipDevices {
			t.Errorf("cgroup %s has no rules any more", name)
		}
		return m, config, dir
	}
	id := func(dir string) string {
		t.Helper()
		f, err := attachedDevices(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		data, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", f.Fd()))
		_, text, ok := strings.Cut(string(data), "prog_id:")
		if err != nil || !ok {
			t.Fatalf("%v: %s", err, data)
		}
		return strings.TrimSpace(text)
	}
	null := &devices.Rule{Type: devices.CharDevice, Major: 1, Minor: 3, Permissions: "rwm", Allow: true}
	zero := &devices.Rule{Type: devices.CharDevice, Major: 1, Minor: 5, Permissions: "rwm", Allow: true}
	m, config, first := group("first", null)
	_, _, second := group("second", null)
	_, _, other := group("other", null, zero)
	if id(first) != id(second) || id(first) == id(other) {
		t.Errorf("programs %s, %s and %s: want the first two the same", id(first), id(second), id(other))
	}
	config.Resources.Devices = []*devices.Rule{null, zero}
	if err := m.Set(config.Resources); err != nil {
		t.Fatal(err)
	}
	if id(first) == id(second) {
		t.Error("a change of one cgroup changed the other, or nothing")
	}
	// It forbids what the rules do not allow.
	fd, err := unix.Open(second, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for device, want := range map[string]bool{"/dev/null": true, "/dev/zero": false} {
		cmd := exec.Command("head", "-c1", device)
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
		if got := cmd.Run() == nil; got != want {
			t.Errorf("in the cgroup %s can be opened: %v, want %v", device, got, want)
		}
	}
}
