package testdisk

import (
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/test/testenv"
)

// Tests of other packages run meanwhile, each with a copy of all mounts.
func TestDiskGoesBesideOtherNamespaces(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	other := exec.Command("cat")
	other.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	end, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("disk", func(t *testing.T) {
		dir := t.TempDir()
		Mount(t, dir)
		if err := other.Start(); err != nil {
			t.Error(err)
		}
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	end.Close()
	if other.Process != nil {
		if err := other.Wait(); err != nil {
			t.Error(err)
		}
	}
}
