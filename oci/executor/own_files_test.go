package executor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/flock"
	"github.com/crisp-cri/crisp/oci/wire"
)

// If an executor's socket, its lock or the whole directory is removed, crispd can reach it again,
// and no second executor gets the lock. The directories get their former modes.
func TestRemovedFilesArePutBack(t *testing.T) {
	x := newExecutor(t)
	handler := make(chan *wire.Conn, 10)
	go wire.Serve(x.files.listener, callers(handler), x.log)
	defer x.files.listener.Close()
	dir, socket := x.opts.State, x.opts.Socket
	lock, hands, own := filepath.Join(dir, lockName), filepath.Join(dir, "executor.inhand"), filepath.Join(dir, "executor")
	if err := os.Chmod(dir, 0o701); err != nil {
		t.Fatal(err)
	}
	look := func(want ...string) {
		t.Helper()
		if again, err := x.lookAtFiles(); err != nil || !slices.Equal(again, want) {
			t.Fatalf("put back %q (%v), want %q", again, err, want)
		}
	}
	look()
	for _, removed := range [][]string{{socket}, {lock}, {hands}, {lock, hands, socket}, {own}, {dir}} {
		for _, path := range removed {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
		}
		switch removed[0] {
		case own:
			look()
		case dir:
			look(lock, hands, socket)
		default:
			look(removed...)
		}
		c, err := wire.Dial(t.Context(), socket)
		if err != nil {
			t.Fatalf("without %q: %v", removed, err)
		}
		if _, err := c.Call(t.Context(), wire.MethodPing, nil, nil); err != nil {
			t.Errorf("without %q: %v", removed, err)
		}
		c.Close()
		if err := tryLock(lock); !errors.Is(err, flock.ErrHeld) {
			t.Errorf("without %q a second executor gets the lock: %v", removed, err)
		}
		for path, want := range map[string]fs.FileMode{dir: 0o701, own: 0o700, socket: 0o600, lock: 0o600} {
			if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != want {
				t.Errorf("without %q, %s: %v, %v, want %o", removed, path, info, err, want)
			}
		}
	}
	s := x.inherit(false) // what an upgrade would hand over
	for fd, want := range map[int]string{s.Lock: lock, s.Listener: "socket:"} {
		got, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err != nil || !strings.HasPrefix(got, want) || strings.Contains(got, "deleted") {
			t.Errorf("descriptor %d is %s (%v), want %s", fd, got, err, want)
		}
	}
}

func tryLock(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return flock.Try(f)
}

// While another executor has the lock, the socket may be about to become that one's.
func TestSocketIsNotPutBackWithoutTheLock(t *testing.T) {
	x := newExecutor(t)
	lock := filepath.Join(x.opts.State, lockName)
	for _, path := range []string{lock, x.opts.Socket} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	other, err := flock.Take(lock)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := x.lookAtFiles(); len(again) > 0 || !errors.Is(err, flock.ErrHeld) {
		t.Fatalf("put back %q, %v", again, err)
	}
	if _, err := os.Lstat(x.opts.Socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is there (%v)", err)
	}
	other.Close()
	if again, err := x.lookAtFiles(); err != nil || !slices.Equal(again, []string{lock, x.opts.Socket}) {
		t.Errorf("put back %q, %v", again, err)
	}
}

// An executor that is about to exit has no socket.
func TestLeavingPutsNothingBack(t *testing.T) {
	x := newExecutor(t)
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if again, err := x.lookAtFiles(); err != nil || len(again) > 0 {
		t.Fatalf("put back %q, %v", again, err)
	}
	if _, err := os.Lstat(x.opts.Socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is there (%v)", err)
	}
}
