// Package treetest makes directory trees as a hostile container would.
package treetest

import (
	"context"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/tree"
)

// Dir returns a directory on a tmpfs, where a deep tree costs no disk, that is
// removed at the end with whatever is in it. T.TempDir would remove it by recursion.
func Dir(t testing.TB) string {
	t.Helper()
	on := "/dev/shm"
	if _, err := os.Stat(on); err != nil {
		on = ""
	}
	dir, err := os.MkdirTemp(on, "crisp-tree-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Remove(context.WithoutCancel(t.Context()), dir); err != nil {
			t.Errorf("remove test directory: %v", err)
		}
	})
	return dir
}

// Deep makes levels directories of the given name, each in the one before, the
// first in dir, and an empty file beside each.
func Deep(t testing.TB, dir, name string, levels int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { unix.Close(at) }()
	for i := range levels {
		if err := unix.Mkdirat(at, name, 0o755); err != nil {
			t.Fatalf("level %d: %v", i, err)
		}
		if err := unix.Mknodat(at, name+".file", unix.S_IFREG|0o644, 0); err != nil {
			t.Fatalf("level %d: %v", i, err)
		}
		next, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatalf("level %d: %v", i, err)
		}
		unix.Close(at)
		at = next
	}
}

// Descriptors is how many descriptors this process has open.
func Descriptors(t testing.TB) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range names {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			n++
		}
	}
	return n
}
