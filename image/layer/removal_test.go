package layer

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// openEmpty opens a store without layers, and closes it at the end of the test.
func openEmpty(t *testing.T) (dir string, ls *Store) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"layers", "staging"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	life, end := context.WithCancel(context.WithoutCancel(t.Context()))
	ls, err := Open(t.Context(), Options{Root: dir, Life: life, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer end()
		if err := ls.Close(); err != nil {
			t.Error(err)
		}
	})
	return dir, ls
}

// Data that is being removed in the background counts as used until the disk has the space again.
// Otherwise an image collector would find the disk as full as before.
func TestWhatWaitsToBeRemovedIsInUse(t *testing.T) {
	dir, ls := openEmpty(t)
	l, _, err := ls.acquire(t.Context(), digest.FromString("a"), source{}, func(ctx context.Context, dir string, _ *growth) (record, error) {
		return asTree(ctx, dir, func(files string) (shape, error) {
			return shape{}, os.WriteFile(filepath.Join(files, "file"), make([]byte, 1<<20), 0o600)
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := ls.CommitAll(t.Context(), []*Layer{l}); err != nil {
		t.Fatal(err)
	}
	written := filepath.Join(dir, "written") // by a container
	if err := os.Mkdir(written, 0o700); err != nil {
		t.Fatal(err)
	}
	used := func() Usage {
		bytes, inodes := ls.Used()
		return Usage{bytes, inodes}
	}
	before := used()
	if before.Bytes < 1<<20 {
		t.Fatalf("used before is %+v, want 1 MiB", before)
	}

	begin := ls.LastRemoval()
	ls.removals.turn <- struct{}{} // the disk is busy
	if err := ls.release(l); err != nil {
		t.Fatal(err)
	}
	if got := used(); got != before {
		t.Errorf("while a layer waits to be removed, used is %+v, want %+v", got, before)
	}
	if _, err := ls.Discard(written, Usage{1 << 20, 3}); err != nil {
		t.Fatal(err)
	}
	if got, want := used(), (Usage{before.Bytes + 1<<20, before.Inodes + 3}); got != want {
		t.Errorf("while a container's files wait to be removed, used is %+v, want %+v", got, want)
	}
	left, err := os.ReadDir(ls.staging)
	if err != nil || len(left) != 2 {
		t.Fatalf("waiting are %v (err %v), want both", left, err)
	}
	<-ls.removals.turn
	ls.WaitRemoved(t.Context(), begin)
	if got := used(); got != (Usage{}) {
		t.Errorf("used after all is %+v", got)
	}
}

// Removals that an earlier process did not finish count as used, too.
func TestWhatIsLeftToBeRemovedIsInUse(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	defer end()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	ls := &Store{staging: t.TempDir(), removals: newRemovals(ctx, log), log: log}
	gone := filepath.Join(ls.staging, "gone-x")
	if err := os.Mkdir(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(gone, "layer.json"), []byte(`{"Sum":{"Disk":4096,"Inodes":7}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	ls.removals.turn <- struct{}{}
	ls.sweepStaging()
	if bytes, inodes := ls.Used(); bytes != 4096+block || inodes != 7 {
		t.Errorf("used is %d bytes, %d inodes", bytes, inodes)
	}
	<-ls.removals.turn
	ls.removals.background.Wait()
	if bytes, inodes := ls.Used(); bytes != 0 || inodes != 0 {
		t.Errorf("used after it was removed is %d bytes, %d inodes", bytes, inodes)
	}
}

// A failed removal is retried, without waiting for the next start.
func TestRemovalIsTriedAgain(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	busy := filepath.Join(dir, "gone-x", "busy")
	if err := os.MkdirAll(busy, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", busy, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(busy, unix.MNT_DETACH) // already gone, unless the test has failed
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		defer end()
		rs := newRemovals(ctx, slog.New(slog.NewTextHandler(t.Output(), nil)))
		rs.later(filepath.Join(dir, "gone-x"), Usage{Bytes: 4096, Inodes: 7})
		rs.waitSince(t.Context(), 0)
		time.Sleep(time.Hour)
		if bytes, inodes := rs.used(); bytes != 4096 || inodes != 7 {
			t.Errorf("while it cannot be removed, used is %d bytes, %d inodes", bytes, inodes)
		}
		if err := unix.Unmount(busy, 0); err != nil {
			t.Fatal(err)
		}
		rs.background.Wait()
		if _, err := os.Stat(filepath.Join(dir, "gone-x")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("it is still there: %v", err)
		}
		if bytes, inodes := rs.used(); bytes != 0 || inodes != 0 {
			t.Errorf("used after it was removed is %d bytes, %d inodes", bytes, inodes)
		}
	})
}

// The removal of an image waits for the disk for a bounded time.
func TestWaitForTheDiskIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rs := newRemovals(t.Context(), slog.New(slog.DiscardHandler))
		rs.add(Usage{})
		begin, now := rs.now(), time.Now()
		rs.waitSince(t.Context(), begin) // a removal that was requested before
		if took := time.Since(now); took != 0 {
			t.Errorf("waited %v for an earlier removal", took)
		}
		rs.add(Usage{})
		rs.waitSince(t.Context(), begin)
		if took := time.Since(now); took != removeWait {
			t.Errorf("waited %v, want %v", took, removeWait)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		now = time.Now()
		rs.waitSince(ctx, begin)
		if took := time.Since(now); took != time.Second {
			t.Errorf("waited %v for a caller that gave up after 1s", took)
		}
	})
}
