package executor_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/thread"
	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/testenv"
)

// Of a container with a mount that propagates to the host, only what its program mounts there
// appears on the host: not the mounts with which it was made, however often it is started.
func TestOnlyTheProgramsMountsPropagate(t *testing.T) {
	kinds := map[string]option{
		"libcontainer": func(*wire.RunRequest, *specs.Spec) {},
		"terminal":     withTTY,
	}
	if testenv.Exists("/usr/sbin/runc") {
		kinds["engine"] = withEngine
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		t.Run(kind, func(t *testing.T) {
			n := start(t)
			dir, other := n.sharedDir("dir"), n.sharedDir("other")
			mountTmpfs(t, dir+"/sub")
			for _, name := range []string{dir + "/file", dir + "/masked", dir + "/readonly/x", dir + "/sub/file", dir + "/of-host/x", dir + "/sub/of-host/x", other + "/of-host/x", other + "/token"} {
				if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte("content of "+filepath.Base(name)), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			before := mountsBelow(t, n.dir)
			for range 3 {
				b := n.run([]string{"print", "up", "sleep", "for-ever"}, kinds[kind], func(_ *wire.RunRequest, s *specs.Spec) {
					s.Linux.RootfsPropagation = "rshared"
					s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = []string{"/dir/masked"}, []string{"/dir/readonly"}
					s.Mounts = append(s.Mounts,
						specs.Mount{Destination: "/dir", Type: "bind", Source: dir, Options: []string{"rbind", "rshared"}},
						specs.Mount{Destination: "/dir/file", Type: "bind", Source: other + "/token", Options: []string{"rbind", "rprivate"}},
						specs.Mount{Destination: "/dir/sub/file", Type: "bind", Source: dir + "/file", Options: []string{"rbind", "rprivate"}},
						specs.Mount{Destination: "/dir/other", Type: "bind", Source: other, Options: []string{"rbind", "rslave"}},
					)
				})
				b.says("up")
				in := fmt.Sprintf("/proc/%d/root", b.reply.Pid)
				if data, err := os.ReadFile(in + "/dir/file"); string(data) != "content of token" {
					t.Errorf("in the container the file has %q (%v)", data, err)
				}
				if after := mountsBelow(t, n.dir); !slices.Equal(after, before) {
					t.Errorf("the host's mounts were\n%q, and are\n%q", before, after)
				}
				mountIn(t, b.reply.Pid, "/dir/own", "/dir/sub/own", "/dir/other/own")
				if after := mountsBelow(t, n.dir); !slices.Equal(after, slices.Sorted(slices.Values(append(before, dir+"/own", dir+"/sub/own")))) {
					t.Errorf("the host's mounts were\n%q, and are\n%q after the program's", before, after)
				}
				mountTmpfs(t, dir+"/of-host", dir+"/sub/of-host", other+"/of-host")
				for _, name := range []string{"/dir/of-host", "/dir/sub/of-host", "/dir/other/of-host"} {
					if _, err := os.Stat(in + name + "/x"); err == nil {
						t.Errorf("what the host has mounted at %s is not in the container", name)
					}
				}
				b.signal(unix.SIGKILL, false)
				b.wait()
				b.delete()
				for _, name := range []string{"/own", "/sub/own", "/of-host", "/sub/of-host"} {
					unmount(t, dir+name)
				}
				unmount(t, other+"/of-host")
				if after := mountsBelow(t, n.dir); !slices.Equal(after, before) {
					t.Errorf("the host's mounts were\n%q, and are\n%q in the end", before, after)
				}
			}
			for _, name := range []string{dir + "/sub", dir, other} {
				unmount(t, name)
			}
		})
	}
}

// sharedDir returns a directory that is a shared mount.
func (n *node) sharedDir(name string) string {
	n.t.Helper()
	dir := filepath.Join(n.dir, name)
	mountTmpfs(n.t, dir)
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		n.t.Fatal(err)
	}
	return dir
}

func mountTmpfs(t testing.TB, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		if err := errors.Join(os.MkdirAll(dir, 0o755), unix.Mount("tmpfs", dir, "tmpfs", 0, "")); err != nil {
			t.Fatal(err)
		}
	}
}

func unmount(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Unmount(dir, 0); err != nil {
		t.Errorf("unmount %s: %v", dir, err)
	}
}

// mountIn mounts file systems as a program of the container of pid would.
func mountIn(t *testing.T, pid int, dirs ...string) {
	t.Helper()
	err := thread.Run(func() error {
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err != nil {
			return err
		}
		defer ns.Close()
		if err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS)); err != nil {
			return err
		}
		var errs []error
		for _, dir := range dirs {
			errs = append(errs, os.MkdirAll(dir, 0o755), unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// mountsBelow returns the mount points below dir, one for each mount.
func mountsBelow(t *testing.T, dir string) (points []string) {
	t.Helper()
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if strings.HasPrefix(m.Mountpoint, dir+"/") && !strings.HasPrefix(m.Mountpoint, dir+"/executor/") {
			points = append(points, m.Mountpoint)
		}
	}
	slices.Sort(points)
	return points
}

// The host has several mounts of one peer group whose roots mountinfo does not tell apart: a
// subdirectory was mounted, removed, made again and mounted again, as the kubelet does with
// subPaths. Any of them may be looked at first.
func TestMountsJoinWhateverTheirPeersAreCalled(t *testing.T) {
	n := start(t)
	dir, binds := n.sharedDir("dir"), n.sharedDir("binds")
	sub := dir + "/sub"
	for _, name := range []string{"a", "b", "c"} {
		at := filepath.Join(binds, name)
		if err := errors.Join(os.Mkdir(sub, 0o755), os.Mkdir(at, 0o755), unix.Mount(sub, at, "", unix.MS_BIND, ""), os.Remove(sub)); err != nil {
			t.Fatal(err)
		}
	}
	for range 12 {
		b := n.run([]string{"print", "up", "sleep", "for-ever"}, func(_ *wire.RunRequest, s *specs.Spec) {
			s.Linux.RootfsPropagation = "rshared"
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/binds", Type: "bind", Source: binds, Options: []string{"rbind", "rshared"}})
		})
		b.says("up")
		mountIn(t, b.reply.Pid, "/binds/own")
		unmount(t, binds+"/own")
		b.signal(unix.SIGKILL, false)
		b.wait()
		b.delete()
	}
	for _, name := range []string{binds + "/a", binds + "/b", binds + "/c", binds, dir} {
		unmount(t, name)
	}
}
