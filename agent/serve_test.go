package agent

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A member of the group reaches the agent, and other users of the machine neither
// the socket nor what is beside it.
func TestGroupReachesTheSocket(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it becomes another user")
	}
	const group, user = 61234, 61234
	top, err := os.MkdirTemp("", "crisp-") // t.TempDir is closed to others
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(top)
	if err := os.Chmod(top, 0o755); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(top, "root")
	unlock, err := lockRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	l, err := listenUnix(SocketOf(root))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := letGroup(group, root, SocketOf(root)); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		gid  int
		want error
	}{
		"member": {group, nil},
		"other":  {group + 1, unix.EACCES},
	} {
		if err := asUser(user, test.gid, func() error {
			c, err := net.Dial("unix", SocketOf(root))
			if err == nil {
				c.Close()
			}
			return err
		}); !errors.Is(err, test.want) {
			t.Errorf("%s: connect is %v, want %v", name, err, test.want)
		}
	}
}

// asUser calls f with the file permissions of a user (setfsuid(2)).
func asUser(uid, gid int, f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		if err := unix.Setfsgid(gid); err != nil {
			result <- err
			return
		}
		if err := unix.Setfsuid(uid); err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}
