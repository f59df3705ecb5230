package executor

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/wire"
)

// adopt serves wire.AdoptRequest. It also adopts a process that no longer exists, so that its
// exit is reported.
func (x *Executor) adopt(req wire.AdoptRequest, call *wire.Call) (err error) {
	x.gate.begin()
	defer x.gate.end() // not before a failure is rolled back
	var steps undo.Stack
	defer steps.RunIf(&err)

	s := settings{Settings: req.Settings}
	c, err := x.table.reserve(s, nil, nil)
	if err != nil {
		return err
	}
	steps.Add("reservation", func() error { x.table.release(c); return nil })
	c.ref = req.RunReply
	c.runtime = x.runtimeOf(req.ID)
	ownPID, paths, err := c.runtime.facts()
	if c.ownPID = ownPID; err == nil {
		c.ref.Cgroups = paths
	}
	if c.proc, err = adoptChild(req.Pid, req.StartTime, call.File(wire.FDPid)); err != nil {
		c.exit = &wire.Exit{ID: c.ID, Code: 255, At: time.Now(), Reason: wire.ReasonUnknown, Message: err.Error()}
	}
	x.hands.complete(s)
	log, err := openLog(s, x.log)
	if err != nil {
		// The container runs, even if its output is lost.
		x.log.Warn("container output is being lost", "container", c.ID, "err", err)
	}
	var ends [4]*os.File
	for i, name := range []string{wire.FDStdin, wire.FDStdout, wire.FDStderr, wire.FDPTY} {
		if ends[i], err = repoll(call.File(name)); err != nil {
			wire.CloseAll(ends[:])
			c.proc.close()
			if log != nil {
				log.Close()
			}
			return err
		}
	}
	if ends[1] == nil && ends[2] == nil && ends[3] == nil && req.LogPath != "" {
		x.log.Warn("container was adopted without its stdio: its output is lost, and it may end when it writes", "container", c.ID)
	}
	c.io = newStdio(s, log, ends[0], ends[1], ends[2], ends[3])
	if x.countOOM(c); c.oom != nil {
		c.oom.reported.Store(req.OOMKills)
	}
	if err := x.execs.endForeign(c, x.builtins.root); err != nil {
		x.log.Warn("execs of the previous executor could not be ended", "container", c.ID, "err", err)
	}
	x.setRunning(c)
	return nil
}

// adoptChild makes a child for a process that another executor started.
func adoptChild(pid int, start uint64, pidfd *os.File) (*child, error) {
	lost := &child{pid: pid}
	if pidfd != nil {
		f, err := repoll(pidfd)
		if err != nil {
			return lost, err
		}
		return &child{pid: pid, pidfd: f}, nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return lost, fmt.Errorf("exit code lost: the executor that started it died, and the process had ended before another took over")
	}
	// The PID is trusted only together with the start time.
	if t, err := startTime(pid); err != nil || t != start {
		unix.Close(fd)
		return lost, fmt.Errorf("exit code lost: the executor that started it died, and process %d is another one now", pid)
	}
	f, err := polled(fd, wire.FDPid)
	if err != nil {
		return lost, err
	}
	return &child{pid: pid, pidfd: f}, nil
}

// repoll puts a received file into the poller. It takes ownership of f; nil stays nil.
func repoll(f *os.File) (*os.File, error) {
	if f == nil {
		return nil, nil
	}
	defer f.Close()
	d, err := dup(f)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var fd int
	if err := withFD(d, func(n int) (err error) {
		fd, err = unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 3)
		return err
	}); err != nil {
		return nil, err
	}
	return polled(fd, f.Name())
}
