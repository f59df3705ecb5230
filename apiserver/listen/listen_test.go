package listen

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/thread"
	"github.com/crisp-cri/crisp/test/testdisk"
	"github.com/crisp-cri/crisp/test/testenv"
	"golang.org/x/sys/unix"
)

// Requests of a page in the node's browser whose host name resolves to 127.0.0.1 (DNS rebinding)
// are rejected.
func TestReadOnlyPortIsNotForPages(t *testing.T) {
	h := readOnly(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "pods") }))
	for host, want := range map[string]int{
		"127.0.0.1:10255": 200, "127.0.0.1": 200, "127.1.2.3:1": 200, "localhost:10255": 200, "LocalHost": 200, "[::1]:10255": 200, "[::1]": 200,
		"rebind.example:10255": 421, "rebind.example": 421, "127.0.0.1.rebind.example": 421, "192.0.2.1:10255": 421, "": 421, "localhost.example": 421,
	} {
		r := httptest.NewRequest(http.MethodGet, "/pods", nil)
		r.Host = host
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want || (w.Code == 200) != (w.Body.String() == "pods") {
			t.Errorf("Host %q: %d %q, want %d", host, w.Code, w.Body, want)
		}
	}
}

// A member of the group can connect to the agent; other users can reach neither the socket nor
// the files beside it.
func TestGroupReachesTheSocket(t *testing.T) {
	testenv.NeedRoot(t, "it becomes another user")
	const group, user = 61234, 61234
	top, err := os.MkdirTemp("", "crisp-") // t.TempDir is not accessible to other users
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(top)
	if err := os.Chmod(top, 0o755); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(top, "root")
	if err := os.Mkdir(root, 0o750); err != nil { // with the agent's mode
		t.Fatal(err)
	}
	socket := filepath.Join(root, "agent.sock")
	l, err := listenUnix(root, socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := letGroup(group, root, socket); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Look(); err != nil {
		t.Fatal(err)
	}
	reach := func(when string) {
		t.Helper()
		for name, test := range map[string]struct {
			gid  int
			want error
		}{
			"member": {group, nil},
			"other":  {group + 1, unix.EACCES},
		} {
			if err := asUser(user, test.gid, func() error {
				c, err := net.Dial("unix", socket)
				if err == nil {
					c.Close()
				}
				return err
			}); !errors.Is(err, test.want) {
				t.Errorf("%s, %s: connect is %v, want %v", when, name, err, test.want)
			}
		}
	}
	reach("at first")

	// The same after the socket, or its directory, was removed.
	for _, path := range []string{socket, root} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if again, err := l.Look(); !again || err != nil {
			t.Fatalf("%s is not put back: %v", path, err)
		}
		reach("after the removal of " + path)
	}
}

// asUser calls f with the file permissions of a user (setfsuid(2)).
func asUser(uid, gid int, f func() error) error {
	return thread.Run(func() error {
		if err := unix.Setfsgid(gid); err != nil {
			return err
		}
		if err := unix.Setfsuid(uid); err != nil {
			return err
		}
		return f()
	})
}

// The socket serves the profiles of the process, and the API for everything else.
func TestProfiles(t *testing.T) {
	h := withProfiles(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "pods") }))
	for path, want := range map[string]string{
		"/debug/pprof/goroutine?debug=1": "goroutine profile: total", "/debug/pprof/": "goroutine", "/debug/pprof/nosuch": "Unknown profile",
		"/debug/pprof": "pods", "/debug/": "pods", "/api/v1/pods": "pods",
	} {
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil)); !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %.80q, want %q", path, w.Body, want)
		}
	}
}

// Whoever connects to the socket at once, as a script that waits for it does, finds the kubeconfig.
func TestKubeconfigIsThereFirst(t *testing.T) {
	root := t.TempDir()
	socket, found := filepath.Join(root, "agent.sock"), make(chan error)
	go func() {
		for t.Context().Err() == nil {
			c, err := net.Dial("unix", socket)
			if err != nil {
				continue
			}
			c.Close()
			_, err = os.Stat(filepath.Join(root, "kubeconfig"))
			found <- err
			return
		}
	}()
	s, err := Begin(t.Context(), Handlers{}, Options{Root: root, Socket: socket, Address: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := <-found; err != nil {
		t.Error(err)
	}
}

// An address that another program took while the disk was full keeps the agent from serving there,
// but neither from opening its socket nor from restoring it.
func TestSocketDoesNotWaitForTheAddress(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64k,nr_inodes=50"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	root, filled := filepath.Join(disk, "root"), filepath.Join(disk, "filled")
	if err := errors.Join(os.Mkdir(root, 0o750), os.Mkdir(filled, 0o700), testdisk.Fill(filled)); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, socket := other.Addr().String(), filepath.Join(root, "agent.sock")
	o := Options{Root: root, Socket: socket, Address: address, Log: slog.New(slog.DiscardHandler)}
	if s, err := Begin(t.Context(), Handlers{}, o); !errors.Is(err, unix.EADDRINUSE) {
		t.Fatalf("at a taken address: %v, %v", s, err)
	}
	other.Close()
	s, err := Begin(t.Context(), Handlers{}, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	look := func(when string, want error, again ...string) {
		t.Helper()
		if got, err := s.Look(); !errors.Is(err, want) || !slices.Equal(got, again) {
			t.Errorf("%s: %v again, %v", when, got, err)
		}
		if want == unix.ENOSPC {
			return
		}
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		c.Close()
	}
	look("full", unix.ENOSPC)
	if other, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := os.RemoveAll(filled); err != nil {
		t.Fatal(err)
	}
	look("taken", unix.EADDRINUSE)
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	look("removed", unix.EADDRINUSE, socket)
	other.Close()
	look("free", nil)
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}
