package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/network/netns"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/test/testenv"
)

// Without an executor, wipe unpins the network namespaces that the default instance has
// pinned among those of others, and only those; so it does with what gVisor has pinned for it.
func TestWipeUnpinsOwnNamespaces(t *testing.T) {
	const inside = "CRISPD_TEST_WIPE"
	testenv.NeedRoot(t, "it mounts")
	if os.Getenv(inside) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS} // makes mounts private
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	empty := filepath.Join(t.TempDir(), "crispd.toml")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Source{File: empty})
	if err != nil {
		t.Fatal(err)
	}
	run, err := filepath.EvalSymlinks("/var/run")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", run, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(netNSDir(c), 0o755); err != nil {
		t.Fatal(err)
	}
	pin := func(name string) string {
		path := filepath.Join(netNSDir(c), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("/proc/self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		return path
	}
	own, other := pin("crisp-"+strings.Repeat("4f", 32)), pin("cni-4f5c")
	null := pin("../runsc/" + oci.ShimNamespace(c.State) + "/null-netns")
	others := pin("../runsc/crisp-0123456789abcdef/null-netns")
	w := wiping{c: c, out: io.Discard}
	w.unmount()
	w.namespaces()
	if len(w.errs) > 0 {
		t.Error(w.errs)
	}
	if _, err := os.Lstat(own); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", own, err)
	}
	if _, err := os.Lstat(filepath.Dir(null)); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", null, err)
	}
	for _, other := range []string{other, others} {
		if !netns.Pinned(other) {
			t.Errorf("%s, which is another's, is not pinned any more", other)
		}
	}
}
