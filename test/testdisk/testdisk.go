// Package testdisk gives tests a disk that loses what is written to it.
package testdisk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A Disk is an ext4 that accepts more data than the disk below it has room for: the excess is
// lost when it is written back, as with a disk that fails.
type Disk struct {
	dir, ballast string
}

// Mount mounts a Disk at dir, which the test unmounts. It needs root.
func Mount(t testing.TB, dir string) *Disk {
	t.Helper()
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		t.Skip("needs mkfs.ext4, of e2fsprogs")
	}
	below := t.TempDir()
	if err := unix.Mount("tmpfs", below, "tmpfs", 0, "size=48m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Namespaces that other tests have made meanwhile have a copy of the loop device's
		// mount, which keeps its file in use.
		if err := unix.Unmount(below, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	file := filepath.Join(below, "disk")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 64<<20)); err != nil {
		t.Fatal(err)
	}
	// Without a journal, whose loss would be noticed.
	out, err := exec.Command(mkfs, "-q", "-O", "^has_journal", "-N", "1024", "-E", "lazy_itable_init=0", file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop", file, dir).CombinedOutput(); err != nil {
		t.Fatalf("mount %s: %v: %s", file, err, out)
	}
	return &Disk{dir: dir, ballast: filepath.Join(below, "ballast")}
}

// Break fills the disk below: what is written from now on is lost. Earlier data must have been
// synced.
func (d *Disk) Break() (err error) {
	f, err := os.Create(d.ballast)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for block := make([]byte, 1<<20); ; {
		if _, err := f.Write(block); errors.Is(err, unix.ENOSPC) {
			return nil
		} else if err != nil {
			return fmt.Errorf("fill %s: %w", d.ballast, err)
		}
	}
}

// Mend undoes Break; what is lost stays lost.
func (d *Disk) Mend() error { return os.Remove(d.ballast) }

// Sync syncs the disk, as a program unrelated to the writer would.
func (d *Disk) Sync() error {
	fd, err := unix.Open(d.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Syncfs(fd)
}

// Lose syncs the broken disk, so that the kernel reports the loss, and mends it. It fails
// unless something was lost and is reported only once.
func (d *Disk) Lose() error {
	if err := d.Sync(); err == nil {
		return errors.New("the disk took everything")
	}
	if err := d.Sync(); err != nil {
		return fmt.Errorf("the disk says twice that it lost something: %w", err)
	}
	return d.Mend()
}
