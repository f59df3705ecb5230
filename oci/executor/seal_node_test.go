package executor_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/testenv"
)

// forbidArg makes the test binary execute its other arguments on a system that forbids
// programs in memfds. The sysctl belongs to a PID namespace; ours stays as it is.
const forbidArg = "forbid-programs-in-memory"

func forbidPrograms(args []string) {
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if err == nil {
		err = unix.Mount("proc", "/proc", "proc", 0, "")
	}
	if err == nil {
		err = os.WriteFile("/proc/sys/vm/memfd_noexec", []byte("2"), 0)
	}
	if err == nil {
		err = unix.Exec(args[0], args, os.Environ())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// Where vm.memfd_noexec is 2, as on hardened hosts, no memfd can be executed: the executor
// then runs from a copy that its containers cannot change.
func TestNoProgramsInMemory(t *testing.T) {
	n := newNode(t)
	if _, err := os.Stat("/proc/sys/vm/memfd_noexec"); err != nil {
		t.Skip("needs vm.memfd_noexec, of Linux 6.3")
	}
	n.cmd = exec.Command(os.Args[0], forbidArg, programs.executor, "--socket", n.socket(), "--state", n.dir)
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	var said strings.Builder
	n.cmd.Stderr = &said
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return testenv.Exists(n.socket()) || !alive(n.cmd.Process.Pid) }, "it neither listens nor ends")
	if !testenv.Exists(n.socket()) {
		t.Fatalf("the executor ended, %v: %s", n.cmd.Wait(), said.String())
	}
	n.connect()
	t.Cleanup(n.end)

	sealed := func() {
		t.Helper()
		exe := fmt.Sprintf("/proc/%d/exe", n.cmd.Process.Pid)
		link, err := os.Readlink(exe)
		if err != nil || strings.HasPrefix(link, "/memfd:") {
			t.Fatalf("the executor runs from %q, %v: the sysctl has no effect", link, err)
		}
		// A container that gets hold of the file cannot change it.
		for _, how := range []int{os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_TRUNC} {
			if f, err := os.OpenFile(exe, how, 0); !errors.Is(err, unix.EROFS) {
				f.Close()
				t.Errorf("the program could be opened with flags %#x: %v", how, err)
			}
		}
	}
	sealed()
	b := n.run([]string{"print", "up", "sleep", "for-ever"})
	b.says("up")
	if code := b.exec(wire.ExecRequest{Process: process("exit", "4")}).wait(); code != 4 {
		t.Errorf("exec ended with %d", code)
	}
	n.upgrade()
	sealed()
	if code := b.exec(wire.ExecRequest{Process: process("exit", "5")}).wait(); code != 5 {
		t.Errorf("exec after an upgrade ended with %d", code)
	}
	if os.Getenv("CRISP_BIN") != "" { // else the executor is not static, see needsStatic
		raw := n.run([]string{"env", "RAW"}, func(req *wire.RunRequest, _ *specs.Spec) { req.Env = [][]byte{[]byte("RAW=\xff\xfe")} })
		raw.wait()
		if got := raw.output("stdout"); got != "\xff\xfe\n" {
			t.Errorf("environment is %q", got)
		}
	}
	b.signal(unix.SIGKILL, true)
	if e := b.wait(); e.Code != 137 {
		t.Errorf("exit is %+v", e)
	}
	if data, err := os.ReadFile("/proc/sys/vm/memfd_noexec"); err != nil || string(data) == "2\n" {
		t.Errorf("the machine's own sysctl is %q, %v", data, err)
	}
}
