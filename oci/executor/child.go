package executor

import (
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/procstat"
)

// A child is a process that is waited for through its pidfd: a container's init or an exec.
// Normally it is our own child; one adopted from a dead executor has another parent, which reaps
// it.
type child struct {
	pid   int
	pidfd *os.File // in the poller
	ours  bool
}

// newChild opens the pidfd of a child that has not been reaped.
func newChild(pid int) (*child, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("pidfd of process %d: %w", pid, err)
	}
	f, err := polled(fd, "pidfd")
	if err != nil {
		return nil, err
	}
	return &child{pid: pid, pidfd: f, ours: true}, nil
}

// polled makes a file of fd whose waits use the poller, not a thread.
func polled(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// wait returns when the process has ended; it may not be reaped yet.
func (p *child) wait() error {
	return ready(p.pidfd, unix.POLLIN)
}

// ready waits, in the poller, until poll(2) reports one of events for f.
func ready(f *os.File, events int16) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: events}}
		n, err := unix.Poll(p, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
}

// look returns the exit code of a process for which wait has returned. A child of ours stays a
// zombie, which keeps its code in the kernel, until it is reaped.
func (p *child) look() (int32, error) {
	if !p.ours {
		return p.lookUp()
	}
	for {
		// By PID: it is our zombie, so the PID cannot be reused.
		info, err := waitid(unix.P_PID, p.pid, unix.WEXITED|unix.WNOWAIT)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 255, fmt.Errorf("wait for process %d: %w", p.pid, err)
		case info.code == cldExited:
			return info.status, nil
		default:
			return 128 + info.status, nil // ended by a signal
		}
	}
}

// reap reaps a process whose code is known.
func (p *child) reap() {
	for p.ours {
		if _, err := unix.Wait4(p.pid, nil, 0, nil); err != unix.EINTR {
			return
		}
	}
}

// cldExited is CLD_EXITED: the status is the argument of exit; otherwise it is a signal.
const cldExited = 1

// A childInfo is the beginning of the siginfo_t of a child, sigaction(2). Package unix has no
// fields for the union.
type childInfo struct {
	signo, errno, code int32
	_                  [0]uintptr // the union has a pointer's alignment
	pid                int32
	uid                uint32
	status             int32
}

// waitid is waitid(2). A pid of 0 in the result means that none has ended (WNOHANG).
func waitid(kind, id, options int) (childInfo, error) {
	var info unix.Siginfo
	err := unix.Waitid(kind, id, &info, options, nil)
	return *(*childInfo)(unsafe.Pointer(&info)), err
}

// adoptedPatience bounds how long the foreign parent of an adopted process may take to reap it:
// only then does the kernel report the exit code.
const adoptedPatience = 5 * time.Second

// lookUp finds the exit code of a process that is not our child. Since Linux 6.15 the pidfd
// reports it (PIDFD_GET_INFO with PIDFD_INFO_EXIT) once the process has been reaped; until then,
// field 52 of its stat has it while it is a zombie.
func (p *child) lookUp() (int32, error) {
	deadline := time.Now().Add(adoptedPatience)
	for {
		if ws, ok := p.zombieStatus(); ok {
			return exitCode(ws), nil
		}
		info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
		err := withFD(p.pidfd, func(fd int) error { return unix.IoctlPidfdInfo(fd, &info) })
		if err == nil && info.Mask&unix.PIDFD_INFO_EXIT != 0 {
			return exitCode(unix.WaitStatus(info.Exit_code)), nil
		}
		switch {
		case err == unix.EINVAL || err == unix.ENOTTY:
			return 255, fault.Internal.Errorf("exit code lost: the executor that started it died, and Linux before 6.15 tells the code to nobody else")
		case err == unix.ESRCH:
			return 255, fault.Internal.Errorf("exit code lost: the executor that started it died, and the process was reaped before another took over")
		case time.Now().After(deadline):
			return 255, fault.Internal.Errorf("exit code lost: the executor that started it died, and its new parent has not reaped the process")
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// zombieStatus reads the wait status of a zombie from /proc.
func (p *child) zombieStatus() (unix.WaitStatus, bool) {
	stat, err := procstat.Read(p.pid)
	if err != nil || stat.State != 'Z' {
		return 0, false
	}
	return stat.Exit, p.exists() // else the PID, and the stat, may be another process's
}

// exitCode returns the code as in a shell: 128+n for signal n.
func exitCode(ws unix.WaitStatus) int32 {
	if ws.Signaled() {
		return 128 + int32(ws.Signal())
	}
	return int32(ws.ExitStatus())
}

// signal sends sig. It is no error if the process has ended.
func (p *child) signal(sig unix.Signal) error {
	err := withFD(p.pidfd, func(fd int) error { return unix.PidfdSendSignal(fd, sig, nil, 0) })
	if err == unix.ESRCH || err == os.ErrClosed {
		return nil
	}
	return err
}

// exists reports whether the process has not been reaped: then data just found by its PID
// belongs to it.
func (p *child) exists() bool {
	return withFD(p.pidfd, func(fd int) error { return unix.PidfdSendSignal(fd, 0, nil, 0) }) == nil
}

// ends reports whether the process has ended or is about to: its PID namespace is emptied before
// it ends.
func (p *child) ends() bool { return exiting(p.pid) || !p.exists() }

func (p *child) close() { p.pidfd.Close() }

// withFD calls f with the descriptor of a file that stays open meanwhile. Unlike os.File.Fd, it
// keeps the file in the poller.
func withFD(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return os.ErrClosed
	}
	return inner
}

// dup duplicates a file under the same name, to be sent.
func dup(f *os.File) (*os.File, error) {
	var d *os.File
	err := withFD(f, func(fd int) error {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err == nil {
			d = os.NewFile(uintptr(n), f.Name())
		}
		return err
	})
	return d, err
}

// startTime returns the start time of a process, in clock ticks since boot.
func startTime(pid int) (uint64, error) {
	stat, err := procstat.Read(pid)
	return stat.StartTime, err
}
