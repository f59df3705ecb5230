// Package proc finds processes, signals them, waits for them and ends them. It knows cgroups by
// their paths, and no container.
//
// A Process is waited for by its pidfd; a Remote by what the program tells that started it. A Target is a set of processes that End ends; an Attempt is
// work whose processes end with it; a Reaper reaps the orphans among the executor's children.
package proc

import (
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/procstat"
	"github.com/crisp-cri/crisp/oci/executor/poll"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A Process is a process that is waited for through its pidfd: a container's init or an exec.
// Normally it is our own child; one adopted from a dead executor has another parent, which reaps
// it.
type Process struct {
	PID  int
	FD   *os.File // in the poller; nil of a Remote
	Ours bool

	remote *remote // nil = it is a process of this kernel's, with a pidfd
}

// Open opens the pidfd of a child that has not been reaped.
func Open(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("pidfd of process %d: %w", pid, err)
	}
	f, err := poll.File(fd, "pidfd")
	if err != nil {
		return nil, err
	}
	return &Process{PID: pid, FD: f, Ours: true}, nil
}

// Adopt makes a child for a process that another executor started.
func Adopt(pid int, start uint64, pidfd *os.File) (*Process, error) {
	lost := &Process{PID: pid}
	if pidfd != nil {
		f, err := poll.Received(pidfd)
		if err != nil {
			return lost, err
		}
		return &Process{PID: pid, FD: f}, nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return lost, fmt.Errorf("exit code lost: the executor that started it died, and the process had ended before another took over")
	}
	// The PID is trusted only together with the start time.
	if t, err := StartTime(pid); err != nil || t != start {
		unix.Close(fd)
		return lost, fmt.Errorf("exit code lost: the executor that started it died, and process %d is another one now", pid)
	}
	f, err := poll.File(fd, wire.FDPid)
	if err != nil {
		return lost, err
	}
	return &Process{PID: pid, FD: f}, nil
}

// Wait returns when the process has ended; it may not be reaped yet.
func (p *Process) Wait() error {
	if p.remote != nil {
		<-p.remote.ended
		return nil
	}
	return poll.Ready(p.FD, unix.POLLIN)
}

// Code returns the exit code of a process that wait has returned for. A child of the executor stays
// a zombie, which keeps its code in the kernel, until it is reaped.
func (p *Process) Code() (int32, error) {
	if p.remote != nil {
		return p.remote.code, p.remote.err
	}
	if !p.Ours {
		return p.lookUp()
	}
	for {
		// By PID: it is our zombie, so the PID cannot be reused.
		info, err := waitid(unix.P_PID, p.PID, unix.WEXITED|unix.WNOWAIT)
		switch {
		case err == unix.EINTR:
		case err != nil:
			if ws, ok := p.zombieStatus(); ok {
				return exitCode(ws), nil
			}
			return 255, fmt.Errorf("wait for process %d: %w", p.PID, err)
		case info.code == cldExited:
			return info.status, nil
		default:
			return 128 + info.status, nil // ended by a signal
		}
	}
}

// Reap reaps a process whose code is known.
func (p *Process) Reap() {
	if p.Ours {
		reapChild(p.PID)
	}
}

// reapChild reaps a child when it has ended.
func reapChild(pid int) {
	reap(func() error {
		_, err := unix.Wait4(pid, nil, 0, nil)
		return err
	})
}

// reapTries bounds how often a child is waited for that the kernel does not let us reap.
const reapTries = 10

// reap calls wait until it has reaped a child. It does not give up at the first error: as long as a
// process of a PID namespace has not been reaped, the namespace's init does not end
// (zap_pid_ns_processes of the kernel), and neither does the container.
func reap(wait func() error) {
	for tries := 0; tries < reapTries; {
		switch wait() {
		case nil, unix.ECHILD:
			return
		case unix.EINTR:
		default:
			tries++
			time.Sleep(time.Millisecond)
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
func (p *Process) lookUp() (int32, error) {
	deadline := time.Now().Add(adoptedPatience)
	for {
		if ws, ok := p.zombieStatus(); ok {
			return exitCode(ws), nil
		}
		info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
		err := poll.WithFD(p.FD, func(fd int) error { return unix.IoctlPidfdInfo(fd, &info) })
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
func (p *Process) zombieStatus() (unix.WaitStatus, bool) {
	stat, err := procstat.Read(p.PID)
	if err != nil || stat.State != 'Z' {
		return 0, false
	}
	return stat.Exit, p.Exists() // else the PID, and the stat, may be another process's
}

// exitCode returns the code as in a shell: 128+n for signal n.
func exitCode(ws unix.WaitStatus) int32 {
	if ws.Signaled() {
		return 128 + int32(ws.Signal())
	}
	return int32(ws.ExitStatus())
}

// Signal sends sig. It is no error if the process has ended.
func (p *Process) Signal(sig unix.Signal) error {
	if p.remote != nil {
		if p.remote.over() {
			return nil
		}
		return p.remote.signal(sig)
	}
	err := poll.WithFD(p.FD, func(fd int) error { return unix.PidfdSendSignal(fd, sig, nil, 0) })
	if err == unix.ESRCH || err == os.ErrClosed {
		return nil
	}
	return err
}

// Exists reports whether the process has not been reaped: then data just found by its PID
// belongs to it.
func (p *Process) Exists() bool {
	if p.remote != nil {
		return !p.remote.over()
	}
	return poll.WithFD(p.FD, func(fd int) error { return unix.PidfdSendSignal(fd, 0, nil, 0) }) == nil
}

// Ending reports whether the process has ended or is about to: its PID namespace is emptied before
// it ends.
func (p *Process) Ending() bool {
	return !p.Exists() || p.remote == nil && procstat.Ending(p.PID)
}

func (p *Process) Close() { p.FD.Close() }

// StartTime returns the start time of a process, in clock ticks since boot.
func StartTime(pid int) (uint64, error) {
	stat, err := procstat.Read(pid)
	return stat.StartTime, err
}
