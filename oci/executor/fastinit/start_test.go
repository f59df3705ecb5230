package fastinit

import (
	"encoding/binary"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/test/testenv"
)

// The thread that makes the templates is never the main one, which would stay in their mount
// namespace: /proc/self would show that as ours.
func TestTemplatesLeaveTheMainThread(t *testing.T) {
	testenv.NeedRoot(t, "it makes mount namespaces")
	before, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		s, err := New()
		if err != nil {
			t.Fatal(err)
		}
		s.template.Close()
		s.visible.Close()
		if after, err := os.Readlink("/proc/self/ns/mnt"); err != nil || after != before {
			t.Fatalf("the main thread is in %s (%v), and was in %s", after, err, before)
		}
	}
}

// A first process names the one that goes on for it. A process in the container could make it name
// another container's.
func TestFollowsItsOwnChildOnly(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := func() int {
		p, err := os.StartProcess("/proc/self/exe", []string{"test", "-test.run=^$"}, &os.ProcAttr{})
		if err != nil {
			t.Error(err)
			return 0
		}
		defer p.Release()
		return p.Pid
	}
	other, over := make(chan int), make(chan struct{})
	defer close(over)
	go func() {
		runtime.LockOSThread()
		other <- start()
		<-over
	}()
	for name, pid := range map[string]int{"its own": start(), "another thread's": <-other, "none": os.Getppid()} {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		var said []byte
		for _, n := range []uint64{'p', 1, uint64(pid), 0} {
			said = binary.NativeEndian.AppendUint64(said, n)
		}
		if _, err := unix.Write(fds[1], said); err != nil {
			t.Fatal(err)
		}
		unix.Close(fds[1])
		c := &Child{Pid: start(), plan: &Plan{forks: 1}, conn: os.NewFile(uintptr(fds[0]), "init")}
		if err := c.follow(); (err == nil) != (name == "its own") {
			t.Errorf("it names %s child: %v", name, err)
		}
		c.Close()
		if name != "none" {
			unix.Wait4(pid, nil, 0, nil)
		}
	}
}
