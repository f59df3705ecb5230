package executor_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
)

// forbidCallArg makes the test binary execute its other arguments where the system call of the
// given number fails with EPERM.
const forbidCallArg = "forbid-call"

func forbidCall(number string, args []string) {
	nr, err := strconv.Atoi(number)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(nr), Jf: 1},
		{Code: unix.BPF_RET, K: 0x50000 | uint32(unix.EPERM)}, // SECCOMP_RET_ERRNO
		{Code: unix.BPF_RET, K: 0x7fff0000},                   // SECCOMP_RET_ALLOW
	}
	if err == nil {
		program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		err = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
	}
	if err == nil {
		err = unix.Exec(args[0], args, os.Environ())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// Where a filter around the executor forbids what the fast init needs, the fast init is not tried
// in vain at each start.
func TestFastInitIsForbidden(t *testing.T) {
	for _, nr := range []int{unix.SYS_OPEN_TREE, unix.SYS_OPENAT2, unix.SYS_CLOSE_RANGE} {
		stderr := filepath.Join(t.TempDir(), "stderr")
		t.Setenv(stderrEnv, stderr)
		n := newNode(t)
		n.cmd = exec.Command(os.Args[0], forbidCallArg, strconv.Itoa(nr), programs.executor, "--socket", n.socket(), "--state", n.dir)
		n.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		said, err := os.Create(stderr)
		if err != nil {
			t.Fatal(err)
		}
		defer said.Close()
		n.cmd.Stderr = said
		if err := n.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.end)
		n.connect()
		for range 2 {
			b := n.request([]string{"exit", "3"})
			b.req.Fast = true
			n.call(wire.MethodRun, b.req, &b.reply)
			if e := b.wait(); e.Code != 3 {
				t.Errorf("exit is %+v", e)
			}
		}
		text, err := os.ReadFile(stderr)
		if err != nil || strings.Count(string(text), "libcontainer alone") != 1 || strings.Contains(string(text), "libcontainer tries") {
			t.Errorf("without system call %d the log is (%v)\n%s", nr, err, text)
		}
	}
}
