package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A purge deletes nothing through a mount: what is mounted below crisp's directories may
// be somebody's data. Once that is gone it takes them away.
func TestPurgeKeepsMounts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it mounts")
	}
	text, err := os.ReadFile("../packaging/debian/postrm")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	local := strings.NewReplacer("/var/lib/crisp", dir+"/var/lib/crisp", "/run/crisp", dir+"/run/crisp", "(/var/lib|/run)", dir+"(/var/lib|/run)",
		"/etc/", dir+"/etc/", "/run/systemd", dir+"/run/systemd").Replace(string(text))
	script := filepath.Join(dir, "postrm")
	if err := os.WriteFile(script, []byte(local), 0o700); err != nil {
		t.Fatal(err)
	}
	mounted := filepath.Join(dir, "var/lib/crisp/here")
	for _, d := range []string{mounted, filepath.Join(dir, "run/crisp")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("tmpfs", mounted, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(mounted, unix.MNT_DETACH) })
	touch(t, filepath.Join(mounted, "data"))
	out, err := exec.Command("/bin/sh", script, "purge").CombinedOutput()
	if err == nil || !strings.Contains(string(out), mounted) {
		t.Errorf("with a mount there: %v, %s", err, out)
	}
	if !exists(filepath.Join(mounted, "data")) {
		t.Error("the data is gone")
	}
	if err := unix.Unmount(mounted, 0); err != nil {
		t.Fatal(err)
	}

	// Crisp's directory may be a file system of its own, which is all crisp's.
	whole := filepath.Dir(mounted)
	if err := unix.Mount("tmpfs", whole, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(whole, unix.MNT_DETACH) })
	touch(t, filepath.Join(whole, "image"))
	if out, err := exec.Command("/bin/sh", script, "purge").CombinedOutput(); err != nil || exists(filepath.Join(whole, "image")) {
		t.Errorf("a file system of its own: %v, %s", err, out)
	}
	if err := unix.Unmount(whole, 0); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("/bin/sh", script, "purge").CombinedOutput(); err != nil || exists(filepath.Join(dir, "var/lib/crisp")) || exists(filepath.Join(dir, "run/crisp")) {
		t.Errorf("without: %v, %s", err, out)
	}
}
