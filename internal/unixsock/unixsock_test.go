package unixsock

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/test/testenv"
)

// answer accepts connections to l, and greets and closes each. The channel gets the error of the
// last Accept.
func answer(l *Listener) <-chan error {
	ended := make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			c.Write([]byte("hello"))
			c.Close()
		}
	}()
	return ended
}

func reaches(t *testing.T, path string) {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 5)
	if n, err := c.Read(buf); string(buf[:n]) != "hello" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
}

func mustListen(t *testing.T, path string) *Listener {
	t.Helper()
	l, err := Listen(path, Options{Mode: 0o660, Dir: 0o711})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func mustLook(t *testing.T, l *Listener, want bool) {
	t.Helper()
	if again, err := l.Look(); again != want || err != nil {
		t.Fatalf("a look puts back: %v (%v), want %v", again, err, want)
	}
}

// Clients can reach a daemon again after its socket, or the whole directory, was removed. The mode
// and the owner that an administrator has set are kept.
func TestRemovedSocketIsPutBack(t *testing.T) {
	unix.Umask(0o077) // must have no effect
	defer unix.Umask(0o022)
	for name, remove := range map[string]func(path string) error{
		"socket":    os.Remove,
		"directory": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
		"replaced by a dead one": func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
			if err != nil {
				return err
			}
			dead.SetUnlinkOnClose(false)
			return dead.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "dir", "s")
			l := mustListen(t, path)
			ended := answer(l)
			mustLook(t, l, false)
			reaches(t, path)
			if err := errors.Join(os.Chmod(path, 0o640), os.Chmod(filepath.Dir(path), 0o750|fs.ModeSetgid)); err != nil {
				t.Fatal(err)
			}
			if testenv.Root() {
				if err := errors.Join(os.Lchown(path, 0, 4321), os.Chown(filepath.Dir(path), 0, 1234), os.Chmod(filepath.Dir(path), 0o750|fs.ModeSetgid)); err != nil {
					t.Fatal(err)
				}
			}
			mustLook(t, l, false)
			before := [2]string{look(t, path), look(t, filepath.Dir(path))}
			for range 2 {
				if err := remove(path); err != nil {
					t.Fatal(err)
				}
				mustLook(t, l, true)
				reaches(t, path)
				if after := [2]string{look(t, path), look(t, filepath.Dir(path))}; after != before {
					t.Errorf("was %q, is %q", before, after)
				}
				mustLook(t, l, false)
			}
			l.Close()
			if err := <-ended; !errors.Is(err, net.ErrClosed) {
				t.Errorf("accepting ended with %v", err)
			}
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the socket is left (%v)", err)
			}
		})
	}
}

// look returns a file's mode and owner.
func look(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	return strings.Join([]string{info.Mode().String(), string(rune('0' + st.Uid%10)), string(rune('0' + st.Gid%10))}, " ")
}

// If another process listens on the path now, the daemon does not replace its socket: a successor
// would lose its clients to a daemon that is about to end. The same holds at the end, when the
// socket's file is removed.
func TestSomebodyElsesSocketIsLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l := mustListen(t, path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other := mustListen(t, path)
	answer(other)
	for range 2 {
		if again, err := l.Look(); again || err == nil || !strings.Contains(err.Error(), "in use") {
			t.Fatalf("%v, %v", again, err)
		}
	}
	l.Close()
	reaches(t, path)

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := other.Look(); again || err == nil {
		t.Errorf("a file of somebody: %v, %v", again, err)
	}
	other.Close()
	if data, err := os.ReadFile(path); string(data) != "mine" {
		t.Errorf("a file of somebody has become %q, %v", data, err)
	}
}

// A daemon that has ended does not recreate its socket.
func TestClosedIsNotPutBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l := mustListen(t, path)
	l.Close()
	mustLook(t, l, false)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is there again (%v)", err)
	}
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the second Close: %v", err)
	}
}

// A daemon that continues with the socket of the program that executed it recreates that socket
// too, even if it was removed before.
func TestResumedSocketIsPutBack(t *testing.T) {
	for _, removed := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "s")
		first := mustListen(t, path)
		if removed {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		f, err := first.current().File()
		if err != nil {
			t.Fatal(err)
		}
		socket, err := net.FileListener(f)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		l := Resume(socket.(*net.UnixListener), path, Options{Mode: 0o600, Dir: 0o711})
		first.current().Close()
		answer(l)
		mustLook(t, l, removed)
		reaches(t, path)
		if !removed {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			mustLook(t, l, true)
			reaches(t, path)
		}
		l.Close()
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the socket is left (%v)", err)
		}
	}
}

// Clients that connected before the socket was removed are still served, and so are clients that
// connect while it is recreated.
func TestConnectionsOutliveTheSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l := mustListen(t, path)
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	served, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	mustLook(t, l, true)
	if _, err := served.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	buf := make([]byte, 1)
	if n, err := c.Read(buf); n != 1 {
		t.Error(err)
	}
}

// Between bind(2) and chmod(2) no other user can connect.
func TestModeIsThatOfTheOwnerAtFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := bind(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := look(t, path); !strings.HasPrefix(got, "Srw------- ") {
		t.Errorf("mode %s", got)
	}
}
