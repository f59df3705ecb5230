package executor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/procstat"
	"github.com/crisp-cri/crisp/internal/undo"
)

// engineVersion is the version of the runtime specification that a bundle claims. crun before
// 1.8.5 refuses later ones ("unknown version specified"); runtimes that know later fields read
// them anyway.
const engineVersion = "1.0.2"

// noSubgroup keeps crun from creating a cgroup of its own below a scope, where we would not look
// for the container's processes and counters: crun(1).
const noSubgroup = "run.oci.systemd.subgroup"

// start implements ociRuntime.
func (e *engine) start(ctx context.Context, p *plan) (_ *started, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)
	done := e.all.reaper.expectChild()
	steps.Add("expected child", func() error { done(); return nil })
	spec := p.spec
	spec.Process.Args, spec.Process.Env = p.process.Args, p.process.Env
	spec.Version = engineVersion
	if spec.Annotations == nil {
		spec.Annotations = make(map[string]string)
	}
	spec.Annotations[noSubgroup] = ""
	if _, err := e.put("config.json", spec); err != nil {
		return nil, err
	}
	ends, pid, err := e.create(ctx, p.process, p.settings)
	if err != nil {
		return nil, err
	}
	steps.Add("stdio", ends.closeOurs)
	forget := func() error { e.all.reaper.forget(pid); return nil }
	steps.Add("process", forget)
	if err := p.joins(); err != nil {
		return nil, err
	}
	if err := e.call(ctx, nil, nil, "start", e.id); err != nil {
		return nil, err
	}
	return &started{pid: pid, stdio: ends, served: done, end: func() error { done(); return forget() }}, nil
}

// create has the engine create the container's init, which waits for "start".
func (e *engine) create(ctx context.Context, process *libcontainer.Process, s settings) (_ *stdioEnds, pid int, err error) {
	pidFile := filepath.Join(e.dir, "pid")
	args := []string{"create", "--bundle", e.dir, "--pid-file", pidFile}
	args = append(args, preserve(len(process.ExtraFiles))...)
	ends, err := e.callWithStdio(ctx, process, s, args)
	if err != nil {
		return nil, 0, err
	}
	if pid, err = e.pidOf(pidFile); err == nil {
		err = e.settle(pid)
	}
	if err != nil {
		ends.closeOurs()
		return nil, 0, err
	}
	return ends, pid, nil
}

// exec implements ociRuntime.
func (e *engine) exec(ctx context.Context, _ *execution, p *plan) (_ *started, err error) {
	done := e.all.reaper.expectChild()
	ends, pid, err := e.execProcess(ctx, p.process, p.spec.Process, p.settings)
	if err != nil {
		done()
		return nil, err
	}
	return &started{pid: pid, stdio: ends, served: done, end: func() error {
		defer done()
		defer e.all.reaper.forget(pid)
		return unix.Kill(pid, unix.SIGKILL) // our child, and not reaped
	}}, nil
}

// execProcess makes the engine start another process in the container.
func (e *engine) execProcess(ctx context.Context, process *libcontainer.Process, spec *specs.Process, s settings) (_ *stdioEnds, pid int, err error) {
	spec.Args, spec.Env, spec.Terminal = process.Args, process.Env, s.TTY
	if spec.OOMScoreAdj != nil { // it may have been changed since the start
		with := *e
		with.Score = *spec.OOMScoreAdj
		e = &with
	}
	serial := e.all.serial()
	file, err := e.put("process."+serial, spec)
	if err != nil {
		return nil, 0, err
	}
	defer os.Remove(file)
	pidFile := filepath.Join(e.dir, "pid."+serial)
	defer os.Remove(pidFile)
	args := []string{"exec", "--detach", "--process", file, "--pid-file", pidFile}
	args = append(append(args, groupFlag(process.SubCgroupPaths)...), preserve(len(process.ExtraFiles))...)
	ends, err := e.callWithStdio(ctx, process, s, args)
	if err != nil {
		return nil, 0, errors.Join(err, e.endStarted(pidFile))
	}
	if pid, err = e.pidOf(pidFile); err != nil {
		ends.closeOurs()
		return nil, 0, err
	}
	if size := spec.ConsoleSize; size != nil && ends.pty != nil {
		err = withFD(ends.pty, func(fd int) error {
			return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(size.Width), Row: uint16(size.Height)})
		})
	}
	return ends, pid, err
}

// endStarted ends the process of an exec that an engine has started before it failed.
func (e *engine) endStarted(pidFile string) error {
	pid, err := e.pidOf(pidFile)
	if err != nil {
		return nil // it has started none
	}
	defer e.all.reaper.forget(pid)
	return endTrees(func(t tree) {
		t.add(pid, func() bool {
			stat, err := procstat.Read(pid)
			return err == nil && stat.Parent == os.Getpid() && !stat.Ended()
		})
	})
}

// callWithStdio calls the engine for a process with its own stdio.
func (e *engine) callWithStdio(ctx context.Context, process *libcontainer.Process, s settings, args []string) (_ *stdioEnds, err error) {
	if s.TTY {
		return e.callConsole(ctx, process, args)
	}
	ends, err := connect(process, s)
	if err != nil {
		return nil, err
	}
	ends.ownNull(process)
	err = e.call(ctx, ends, process.ExtraFiles, append(args, e.id)...)
	if stuck := new(stuckError); errors.As(err, &stuck) {
		ends.closeAfter(stuck)
		return nil, err
	}
	ends.closeTheirs()
	if err != nil {
		ends.closeOurs()
		return nil, err
	}
	return ends, nil
}

// callConsole calls the engine for a process with a terminal, which the engine sends to the
// given socket.
func (e *engine) callConsole(ctx context.Context, process *libcontainer.Process, args []string) (*stdioEnds, error) {
	// Not in the bundle: a socket's path has at most 108 bytes (unix(7)).
	socket := filepath.Join(e.all.state, "tty."+e.all.serial())
	l, err := listen(socket) // a dead executor may have left a socket of that number
	if err != nil {
		return nil, fmt.Errorf("socket for a terminal: %w", err)
	}
	defer l.Close() // and remove it
	if err := e.call(ctx, nil, process.ExtraFiles, append(args, "--console-socket", socket, e.id)...); err != nil {
		return nil, err
	}
	// The engine has exited, so whatever it sent has arrived.
	if err := l.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return nil, err
	}
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, fault.Internal.Errorf("%s sent no terminal: %w", e.Path, err)
	}
	defer conn.Close()
	ends := &stdioEnds{}
	if ends.console, err = conn.File(); err != nil {
		return nil, err
	}
	return ends, ends.receive()
}

// listen listens at path, a socket that only we use. It replaces one left by an earlier
// executor.
func listen(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}
