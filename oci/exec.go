package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/wire"
)

// ExecConfig is a process to run in a running container.
type ExecConfig struct {
	Process       *specs.Process
	Env           [][]byte // if not nil, replaces Process.Env
	Stdin, TTY    bool
	Width, Height uint16 // of the terminal, in characters; 0 = unset
}

// An Exec is an additional process in a container. The files are our ends of its stdio; set a
// field to nil to keep Close from closing it.
//
// The terminal of an exec in a shim's container is the shim's: the exec then has Stdin and Stdout,
// no PTY, and is resized by Resize.
type Exec struct {
	Stdin, Stdout, Stderr *os.File // nil with a PTY; Stdin nil unless requested
	PTY                   *os.File // the terminal's master; nil without one

	container string
	id        string
	link      *link
	waited    atomic.Bool
}

// Exec starts a process in a running container (else fault.WrongState). It is killed when the
// daemon ends.
func (c *Container) Exec(ctx context.Context, cfg ExecConfig) (*Exec, error) {
	if err := c.mustRun("exec in"); err != nil {
		return nil, err
	}
	process, err := json.Marshal(cfg.Process)
	if err != nil {
		return nil, fmt.Errorf("encode process for container %s: %w", c.id, err)
	}
	var reply wire.ExecReply
	files, err := c.rt.link.call(ctx, wire.MethodExec, wire.ExecRequest{
		ID: c.id, Process: process, Env: cfg.Env,
		Stdin: cfg.Stdin, TTY: cfg.TTY, Width: cfg.Width, Height: cfg.Height, Fast: c.rt.o.FastInit,
	}, &reply)
	if err != nil {
		return nil, c.notRunning("exec in", err)
	}
	e := &Exec{container: c.id, id: reply.ExecID, link: c.rt.link}
	assignFiles(files, map[string]**os.File{
		wire.FDStdin: &e.Stdin, wire.FDStdout: &e.Stdout, wire.FDStderr: &e.Stderr, wire.FDPTY: &e.PTY,
	})
	return e, nil
}

// Wait returns the exit code of the process, 128+n for signal n. It does not wait for the end of
// the output. It must not be called again after it has returned a code. fault.Unavailable: the
// process was lost with its executor.
func (e *Exec) Wait(ctx context.Context) (int32, error) {
	for lost := false; ; lost = true {
		var reply wire.ExecWaitReply
		_, err := e.link.call(ctx, wire.MethodExecWait, wire.ExecRef{ExecID: e.id}, &reply)
		switch {
		case err == nil:
			e.waited.Store(true)
			return reply.Code, nil
		case errors.Is(err, fault.Unavailable) && !lost: // an upgraded executor still knows it
		case errors.Is(err, fault.NotFound): // by another executor than the one that started it
			return 0, fault.Unavailable.Errorf("exec in container %s was lost with its executor", e.container)
		default:
			return 0, fmt.Errorf("wait for exec in container %s: %w", e.container, err)
		}
	}
}

// Kill kills the process and everything that it started. It is no error if the process has
// ended.
func (e *Exec) Kill() error {
	ctx, cancel := undo.Context(context.Background())
	defer cancel()
	return e.link.again(ctx, wire.MethodExecKill, wire.ExecRef{ExecID: e.id}, nil)
}

// Resize sets the size of the exec's terminal, in characters. It is no error if the process has
// ended.
func (e *Exec) Resize(ctx context.Context, width, height uint16) error {
	if e.PTY == nil {
		req := wire.ExecResizeRequest{ExecID: e.id, Width: width, Height: height}
		return e.link.again(ctx, wire.MethodExecResize, req, nil)
	}
	raw, err := e.PTY.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width})
	})
	return errors.Join(cerr, err)
}

// Close closes the files. If Wait has not returned the exit code, Close kills the process and
// waits for it.
func (e *Exec) Close() error {
	for _, f := range []*os.File{e.Stdin, e.Stdout, e.Stderr, e.PTY} {
		if f != nil {
			f.Close() // may have been closed by whoever copied from it
		}
	}
	if e.waited.Load() {
		return nil
	}
	if err := e.Kill(); err != nil && !errors.Is(err, fault.Unavailable) {
		return err
	}
	ctx, cancel := undo.Context(context.Background())
	defer cancel()
	_, err := e.Wait(ctx)
	if errors.Is(err, fault.Unavailable) || errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// mustRun refuses an operation that requires a running container.
func (c *Container) mustRun(what string) error {
	if st := c.status.Load().State; st != Running && st != Stopping {
		return fault.WrongState.Errorf("container %s is %s: cannot %s it", c.id, st, what)
	}
	return nil
}

// notRunning translates the executor's NotFound: it does not know the container yet, if it is
// stopped while it is being started, or no longer. NotFound would tell a client that the
// container does not exist; the error says that it is not running.
func (c *Container) notRunning(what string, err error) error {
	if errors.Is(err, fault.NotFound) {
		return fault.WrongState.Errorf("container %s does not run: cannot %s it: %v", c.id, what, err)
	}
	return err
}

// assignFiles stores each file in the variable for its name, and closes the others.
func assignFiles(files []*os.File, where map[string]**os.File) {
	for _, f := range files {
		if to := where[f.Name()]; to != nil && *to == nil {
			*to = f
		} else {
			f.Close()
		}
	}
}

// An Attachment is a view of a container's stdio from now on. The caller owns its files: the
// outputs end when the container does, or when they are read too slowly (see
// wire.AttachRequest); closing all of them detaches.
type Attachment struct {
	Stdin, Stdout, Stderr *os.File // Stdin nil unless requested and open; Stderr nil with a terminal
}

// Attach opens the stdio of a running container (else fault.WrongState). With StdinOnce the
// container's stdin ends when the first attached client closes its stdin.
func (c *Container) Attach(ctx context.Context, stdin bool) (*Attachment, error) {
	if err := c.mustRun("attach to"); err != nil {
		return nil, err
	}
	files, err := c.rt.link.call(ctx, wire.MethodAttach, wire.AttachRequest{ID: c.id, Stdin: stdin}, nil)
	if err != nil {
		return nil, c.notRunning("attach to", err)
	}
	a := &Attachment{}
	assignFiles(files, map[string]**os.File{wire.FDStdin: &a.Stdin, wire.FDStdout: &a.Stdout, wire.FDStderr: &a.Stderr})
	return a, nil
}

// Resize sets the size of the container's terminal, in characters.
func (c *Container) Resize(ctx context.Context, width, height uint16) error {
	if err := c.mustRun("resize"); err != nil {
		return err
	}
	return c.notRunning("resize", c.rt.link.again(ctx, wire.MethodResize, wire.ResizeRequest{ID: c.id, Width: width, Height: height}, nil))
}

// ReopenLog switches the log to a new file at its path, which exists once ReopenLog returns. The
// container must be running, else fault.WrongState.
func (c *Container) ReopenLog(ctx context.Context) error {
	if err := c.mustRun("reopen the log of"); err != nil {
		return err
	}
	return c.notRunning("reopen the log of", c.rt.link.again(ctx, wire.MethodReopenLog, wire.Ref{ID: c.id}, nil))
}
