// Unprivileged runs the shim of its own name in the directory above its own, for machines on
// which root may not lower an oom_score_adj (CAP_SYS_RESOURCE, which many containers lack).
//
// gVisor's shim lowers that of its daemon when it starts, and gives up if it may not. So this
// program traces a shim's "start" (ptrace(2)) and turns its opening of a file oom_score_adj for
// writing into one of /dev/null. The daemon that the shim leaves behind is not traced, nor is a
// shim's "delete". With the capability, the shim runs as it is.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"unsafe"
)

const (
	getSyscallInfo = 0x420e // PTRACE_GET_SYSCALL_INFO, Linux 5.3
	exitKill       = 0x100000
	callStop       = syscall.SIGTRAP | 0x80 // with PTRACE_O_TRACESYSGOOD
	capSysResource = 24
	openatEntry    = 1 // PTRACE_SYSCALL_INFO_ENTRY
	null           = "/dev/null\x00"
)

// callInfo is struct ptrace_syscall_info of a call's entry.
type callInfo struct {
	op     uint8
	_      [3]uint8
	_      uint32
	_, _   uint64
	number uint64
	args   [6]uint64
	_      [4]uint64
}

func main() {
	self, err := os.Executable()
	if err != nil {
		fail(err)
	}
	shim := filepath.Join(filepath.Dir(filepath.Dir(self)), filepath.Base(self))
	args := append([]string{shim}, os.Args[1:]...)
	if !slices.Contains(args, "start") || mayLowerScore() {
		fail(syscall.Exec(shim, args, os.Environ()))
	}
	runtime.LockOSThread() // the thread that starts the shim is its tracer
	status, err := trace(shim, args)
	if err != nil {
		fail(err)
	}
	os.Exit(status)
}

// mayLowerScore tells whether this process has CAP_SYS_RESOURCE.
func mayLowerScore() bool {
	header := struct {
		version uint32
		pid     int32
	}{version: 0x20080522}
	var sets [2]struct{ effective, permitted, inheritable uint32 }
	_, _, errno := syscall.RawSyscall(syscall.SYS_CAPGET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets)), 0)
	return errno == 0 && sets[0].effective&(1<<capSysResource) != 0
}

// trace runs the shim from call to call, and returns its exit code.
func trace(shim string, args []string) (int, error) {
	pid, err := syscall.ForkExec(shim, args, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Ptrace: true},
	})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", shim, err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
		return 0, fmt.Errorf("trace %s: not stopped (%v)", shim, err)
	}
	// Threads are traced (their clone is no fork), children are not.
	options := syscall.PTRACE_O_TRACESYSGOOD | syscall.PTRACE_O_TRACECLONE | exitKill
	if err := syscall.PtraceSetOptions(pid, options); err != nil {
		return 0, fmt.Errorf("trace %s: %w", shim, err)
	}
	thread, signal := pid, 0
	for {
		if err := syscall.PtraceSyscall(thread, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return 0, fmt.Errorf("trace %s: %w", shim, err)
		}
		for {
			if thread, err = syscall.Wait4(-1, &status, syscall.WALL, nil); err != nil {
				return 0, fmt.Errorf("wait for %s: %w", shim, err)
			}
			if status.Stopped() {
				break
			}
			if thread == pid {
				return exitCode(status), nil
			}
		}
		signal = 0
		switch stop := status.StopSignal(); {
		case stop == callStop:
			redirect(thread)
		case stop != syscall.SIGTRAP && stop != syscall.SIGSTOP: // SIGSTOP: a new thread
			signal = int(stop)
		}
	}
}

// redirect makes the call that the thread is about to enter open /dev/null if it opens an
// oom_score_adj for writing. The path in the thread's memory is longer than that.
func redirect(thread int) {
	var info callInfo
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PTRACE, getSyscallInfo, uintptr(thread), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 || info.op != openatEntry || info.number != syscall.SYS_OPENAT || info.args[2]&syscall.O_ACCMODE == syscall.O_RDONLY {
		return
	}
	path := make([]byte, 64)
	n, err := syscall.PtracePeekData(thread, uintptr(info.args[1]), path)
	if err != nil && n == 0 {
		return
	}
	path, _, ok := bytes.Cut(path[:n], []byte{0})
	if !ok || !bytes.HasPrefix(path, []byte("/proc/")) || !bytes.HasSuffix(path, []byte("/oom_score_adj")) {
		return
	}
	syscall.PtracePokeData(thread, uintptr(info.args[1]), []byte(null)) // where that fails, the shim says so
}

func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "unprivileged:", err)
	os.Exit(1)
}
