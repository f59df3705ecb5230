package network

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A pod can be detached when the disk is full, or its files would never be removed: DEL needs no
// new file, even for an attachment of a release without locks.
func TestDetachOnFullDisk(t *testing.T) {
	for what, old := range map[string]bool{"this release": false, "an earlier release": true} {
		t.Run(what, func(t *testing.T) {
			o := options(t, "")
			if err := os.Mkdir(o.CacheDir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("tmpfs", o.CacheDir, "tmpfs", 0, "size=1m,nr_inodes=50"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(o.CacheDir, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
			n := open(t, o)
			p, q := pod(t, "p"), pod(t, "q")
			attach(t, n, p)
			if old {
				if err := os.Remove(filepath.Join(o.CacheDir, attachedDir, "p.lock")); err != nil {
					t.Fatal(err)
				}
			}
			junk := filepath.Join(o.CacheDir, "junk")
			err := os.Mkdir(junk, 0o700)
			for i := 0; err == nil; i++ {
				err = os.WriteFile(filepath.Join(junk, string(rune('A'+i))), nil, 0o600)
			}
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			if _, err := n.Attach(t.Context(), q); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("attached with error %v, want %v", err, unix.ENOSPC)
			}
			detach(t, n, p)
			if err := os.RemoveAll(junk); err != nil {
				t.Fatal(err)
			}
			attach(t, n, q)
			detach(t, n, q)
			if left, err := os.ReadDir(filepath.Join(o.CacheDir, attachedDir)); err != nil || len(left) != 0 {
				t.Errorf("left %v, err %v", left, err)
			}
			destroy(t, n)
		})
	}
}
