package oci

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/thread"
	"github.com/crisp-cri/crisp/internal/userns"
	"github.com/crisp-cri/crisp/test/testenv"
)

// inode returns what identifies a namespace.
func inode(t *testing.T, f *os.File) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(st.Dev, " ", st.Ino)
}

// checkOwned fails the test for each namespace pinned in dir that does not belong to its
// user namespace.
func checkOwned(t *testing.T, dir string) {
	t.Helper()
	user, err := os.Open(filepath.Join(dir, "ns/user"))
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	for _, kind := range []string{"net", "uts", "ipc"} {
		f, err := os.Open(filepath.Join(dir, "ns", kind))
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_USERNS)
		if err != nil {
			t.Fatal(err)
		}
		owner := os.NewFile(uintptr(fd), "owner")
		if inode(t, owner) != inode(t, user) {
			t.Errorf("the %s namespace belongs to another user namespace", kind)
		}
		owner.Close()
		f.Close()
	}
}

// A sandbox's namespaces belong to its user namespace and have its hostname and sysctls,
// also if they had to be made a second time.
func TestPinUserNamespace(t *testing.T) {
	testenv.NeedRoot(t, "it makes namespaces")
	base := t.TempDir()
	k := newKernel(base, "", false)
	dir := filepath.Join(base, "sb")
	p := Pins{
		Dir: dir, Net: true, UTS: true, IPC: true, Hostname: "inside",
		IDs: &userns.Map{UID: userns.Range{Host: 200000, Length: 65536}, GID: userns.Range{Host: 300000, Length: 65536}},
		Sysctls: map[string]string{"kernel.shmmni": "77", "net.ipv4.ip_unprivileged_port_start": "7", "kernel.domainname": "domain", "fs.mqueue.msg_max": "13",
			"net.ipv4.ping_group_range": "0 1000"},
	}
	shown := maps.Clone(p.Sysctls)
	shown["net.ipv4.ping_group_range"] = "300000\t301000" // to us

	defer func() {
		if err := k.Unpin(Pins{Dir: dir}); err != nil {
			t.Error(err)
		}
		if k.Pinned(Pins{Dir: dir, IDs: p.IDs}) {
			t.Error("the user namespace is still pinned")
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	}()
	for range 2 { // the second call finds everything in place
		if err := k.Pin(p); err != nil {
			t.Fatal(err)
		}
		checkOwned(t, dir)
	}
	err := thread.Run(func() error {
		for _, kind := range []string{"net", "uts", "ipc"} {
			if err := enter(filepath.Join(dir, "ns", kind)); err != nil {
				return err
			}
		}
		var uts unix.Utsname
		if err := unix.Uname(&uts); err != nil || unix.ByteSliceToString(uts.Nodename[:]) != "inside" {
			t.Errorf("hostname is %s, %v", uts.Nodename, err)
		}
		for name, want := range shown {
			got, err := os.ReadFile(filepath.Join("/proc/sys", sysctlPath(name)))
			if strings.TrimSpace(string(got)) != want {
				t.Errorf("sysctl %s is %q (%v), want %s", name, got, err, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if st := queuesOf(t, dir); st.Uid != 200000 || st.Gid != 300000 {
		t.Errorf("the message queues' directory belongs to %d:%d", st.Uid, st.Gid)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "shm"), &st); err != nil || st.Uid != 200000 || st.Gid != 300000 {
		t.Errorf("shm belongs to %d:%d, %v", st.Uid, st.Gid, err)
	}

	// The state after Pin was killed before its last step.
	if err := unmount(filepath.Join(dir, "ns/user")); err != nil {
		t.Fatal(err)
	}
	if k.Pinned(p) {
		t.Error("without its user namespace the sandbox counts as pinned")
	}
	if err := k.Pin(p); err != nil {
		t.Fatal(err)
	}
	checkOwned(t, dir)
}

// queuesOf returns the attributes of /dev/mqueue of the IPC namespace that is pinned in dir.
func queuesOf(t *testing.T, dir string) (st unix.Stat_t) {
	t.Helper()
	target := t.TempDir()
	err := thread.Run(func() error {
		if err := enter(filepath.Join(dir, "ns/ipc")); err != nil {
			return err
		}
		if err := unix.Mount("mqueue", target, "mqueue", 0, ""); err != nil {
			return err
		}
		return errors.Join(unix.Stat(target, &st), unix.Unmount(target, 0))
	})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// The groups that may ping are named by their numbers inside. A range that goes beyond them, as
// usual for all groups, ends with the last one.
func TestPingGroupsOfUserNamespace(t *testing.T) {
	groups := userns.Range{Host: 300000, Length: 65536}
	for value, want := range map[string]string{
		"0 2147483647": "300000 365535", "0\t1000": "300000 301000", " 5 5 ": "300005 300005", "1 0": "300001 300000",
		"x": "x", "0 0 0": "0 0 0", "-1 5": "-1 5", "": "", // the kernel refuses these
	} {
		if got, err := groupsOutside(value, groups); got != want || err != nil {
			t.Errorf("%q is written as %q, %v, want %q", value, got, err, want)
		}
	}
	for host, want := range map[uint32]string{1<<31 - 10: "2147483638 2147483647", 1 << 31: "0 2147483647"} { // what the kernel can take
		if got, err := groupsOutside("0 2147483647", userns.Range{Host: host, Length: 65536}); got != want || err != nil {
			t.Errorf("for groups from %d on: %q, %v, want %q", host, got, err, want)
		}
	}
	if got, err := groupsOutside("65536 70000", groups); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a range of no group inside is written as %q, %v", got, err)
	}
}

func TestCheckIDs(t *testing.T) {
	whole := userns.Range{Host: 1000, Length: 100}
	for name, tc := range map[string]struct {
		config  SandboxConfig
		refused bool
	}{
		"none":         {SandboxConfig{HostPID: true, HostIPC: true}, false},
		"whole":        {SandboxConfig{IDs: &userns.Map{UID: whole, GID: whole}}, false},
		"host network": {SandboxConfig{IDs: &userns.Map{UID: whole, GID: whole}, HostNetwork: true}, false},
		"host pid":     {SandboxConfig{IDs: &userns.Map{UID: whole, GID: whole}, HostPID: true}, true},
		"host ipc":     {SandboxConfig{IDs: &userns.Map{UID: whole, GID: whole}, HostIPC: true}, true},
		"empty":        {SandboxConfig{IDs: &userns.Map{UID: whole}}, true},
		"too far":      {SandboxConfig{IDs: &userns.Map{UID: userns.Range{Host: 1<<32 - 2, Length: 2}, GID: whole}}, true},
	} {
		if err := checkIDs(tc.config); fault.KindOf(err) == fault.Invalid != tc.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
