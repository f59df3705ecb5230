package ocitest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// An execution is a process beside a container's own.
type execution struct {
	conn *conn
	proc *process
}

// serve does one call.
func (x *Executor) serve(ctx context.Context, c *conn, method string, body []byte, files []*os.File) (any, []*os.File, error) {
	switch method {
	case wire.MethodSubscribe:
		x.mu.Lock()
		defer x.mu.Unlock()
		x.conns[c] = true
		return nil, nil, nil
	case wire.MethodList:
		return x.list(), nil, nil
	case wire.MethodRun:
		return with(body, x.run)
	case wire.MethodFreeze:
		return with(body, x.freeze)
	case wire.MethodThaw:
		return with(body, x.thaw)
	case wire.MethodCheckpoint:
		return with(body, x.checkpoint)
	case wire.MethodRestore:
		return with(body, x.restore)
	case wire.MethodPodInit:
		return with(body, x.podInit)
	case wire.MethodAdopt:
		return with(body, func(req wire.AdoptRequest) (any, []*os.File, error) { return nil, nil, x.adopt(req, files) })
	case wire.MethodDescriptors:
		return with(body, func(ref wire.Ref) (any, []*os.File, error) {
			_, err := x.find(ref.ID)
			if err != nil {
				return nil, nil, err
			}
			return nil, []*os.File{pidfd()}, nil
		})
	case wire.MethodSignal:
		return with(body, x.signal)
	case wire.MethodDelete:
		return with(body, x.delete)
	case wire.MethodExec:
		return with(body, func(req wire.ExecRequest) (any, []*os.File, error) { return x.exec(c, req) })
	case wire.MethodExecWait:
		return with(body, func(ref wire.ExecRef) (any, []*os.File, error) { return x.execWait(ctx, c, ref) })
	case wire.MethodExecKill:
		return with(body, x.execKill)
	case wire.MethodAttach:
		return with(body, x.attach)
	case wire.MethodResize, wire.MethodUpdate, wire.MethodReopenLog:
		return with(body, func(ref wire.Ref) (any, []*os.File, error) { return nil, nil, x.touch(method, ref.ID) })
	case wire.MethodShutdown:
		return nil, nil, x.shutdown()
	}
	return nil, nil, fault.Invalid.Errorf("executor: no method %q", method)
}

// with decodes the request of f.
func with[T any](body []byte, f func(T) (any, []*os.File, error)) (any, []*os.File, error) {
	var req T
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, nil, fault.Invalid.Errorf("request: %w", err)
	}
	return f(req)
}

// pidfd returns a descriptor that stands for a process.
func pidfd() *os.File {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		panic(err) // no test gets far without /dev/null
	}
	return os.NewFile(uintptr(fd), wire.FDPid)
}

// runs reports whether a process is alive.
func (x *Executor) runs(pid int, startTime uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range x.forked {
		if c.reply.Pid == pid && c.reply.StartTime == startTime {
			return !c.init.ended()
		}
	}
	return false
}

func (x *Executor) find(id string) (*container, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	c, ok := x.known[id]
	if !ok {
		return nil, fault.NotFound.Errorf("executor has no container %s", id)
	}
	return c, nil
}

func (x *Executor) list() []wire.Info {
	x.mu.Lock()
	defer x.mu.Unlock()
	infos := []wire.Info{}
	for id, c := range x.known {
		infos = append(infos, wire.Info{ID: id, RunReply: c.reply, Exit: c.exit})
	}
	return infos
}

func (x *Executor) run(req wire.RunRequest) (any, []*os.File, error) {
	spec := req.Spec
	if strings.HasPrefix(filepath.Base(spec.Process.Args[0]), "missing") {
		return nil, nil, fault.Invalid.Errorf("exec: %q: no such file or directory", spec.Process.Args[0])
	}
	c := newContainer(req, spec)
	return x.start(c, spec.Process.Args)
}

func (x *Executor) podInit(req wire.PodInitRequest) (any, []*os.File, error) {
	c := newContainer(wire.RunRequest{Settings: wire.Settings{ID: req.ID, ExitPath: req.ExitPath}}, &specs.Spec{})
	return x.start(c, []string{"crisp-podinit"})
}

// start runs c and watches it.
func (x *Executor) start(c *container, args []string) (any, []*os.File, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.known[c.req.ID]; ok {
		return nil, nil, fault.Exists.Errorf("executor has a container %s", c.req.ID)
	}
	x.serial++
	// Above the largest pid_max (2^22), so that it is not in use.
	c.reply = wire.RunReply{Pid: 1<<30 + x.serial, StartTime: uint64(x.serial), StartedAt: time.Now(), Cgroups: x.groups}
	x.forked[c.req.ID], x.known[c.req.ID] = c, c
	c.init = c.fork(args)
	go func() {
		<-c.init.done
		x.reap(c)
	}()
	return c.reply, []*os.File{pidfd()}, nil
}

// reap records the end of c, if there is an executor that is its parent.
func (x *Executor) reap(c *container) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c.ownPIDs {
		c.signal(unix.SIGKILL, true) // the kernel's doing
	}
	if c.req.Shim != nil && c.req.Shim.Sandbox == "" {
		for _, other := range x.forked { // the shim's
			if other.req.Shim != nil && other.req.Shim.Sandbox == c.req.ID {
				other.signal(unix.SIGKILL, true)
			}
		}
	}
	if c.endedAt.IsZero() {
		c.endedAt = time.Now()
	}
	if x.known[c.req.ID] != c || c.exit != nil {
		return
	}
	c.signal(unix.SIGKILL, true) // the executor's
	e := wire.Exit{ID: c.req.ID, Code: c.init.code, At: c.endedAt, OOMKilled: c.init.oom, Reason: wire.ReasonError}
	switch {
	case e.OOMKilled:
		e.Reason = wire.ReasonOOMKilled
		x.publish(wire.Event{Kind: wire.EventOOM, ID: e.ID})
	case c.lost:
		e.Code, e.Reason, e.Message = 255, wire.ReasonUnknown, "exit code lost"
	case e.Code == 0:
		e.Reason = wire.ReasonCompleted
	}
	if c.req.ExitPath != "" {
		data, _ := json.Marshal(e)
		_ = atomicfile.WriteVolatile(c.req.ExitPath, data, 0o600) // gone if a test removed the machine
	}
	c.exit = &e
	c.closeAttached()
	x.publish(wire.Event{Kind: wire.EventExit, ID: e.ID, Exit: &e})
}

// adopt takes over what a dead executor has forked. Without a pidfd the exit code
// of a process that has ended is lost.
func (x *Executor) adopt(req wire.AdoptRequest, files []*os.File) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	c, ok := x.forked[req.ID]
	if !ok || c.reply.Pid != req.Pid {
		return fault.NotFound.Errorf("adopt %s: no process %d", req.ID, req.Pid)
	}
	x.known[req.ID] = c
	if c.kills > req.OOMKills {
		x.publish(wire.Event{Kind: wire.EventOOM, ID: req.ID, Kills: c.kills})
	}
	if c.init.ended() {
		if !slices.ContainsFunc(files, func(f *os.File) bool { return f.Name() == wire.FDPid }) {
			c.lost = true
		}
		go x.reap(c)
	}
	return nil
}

func (x *Executor) signal(req wire.SignalRequest) (any, []*os.File, error) {
	if coming, err := x.signalComing(req); coming {
		return nil, nil, err
	}
	c, err := x.find(req.ID)
	if err != nil {
		return nil, nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	c.signal(unix.Signal(req.Signal), req.All)
	return nil, nil, nil
}

// signalComing is signal for a container that is being started, if it is.
func (x *Executor) signalComing(req wire.SignalRequest) (coming bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	killed := x.coming[req.ID]
	switch {
	case killed == nil:
		return false, nil
	case unix.Signal(req.Signal) != unix.SIGKILL:
		return true, fault.WrongState.Errorf("container %s is starting", req.ID)
	}
	select {
	case <-killed: // before
	default:
		close(killed)
	}
	return true, nil
}

func (x *Executor) delete(ref wire.Ref) (any, []*os.File, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.coming[ref.ID] != nil {
		return nil, nil, fault.WrongState.Errorf("container %s has not ended", ref.ID)
	}
	if c, ok := x.known[ref.ID]; ok && c.exit == nil && !c.init.ended() {
		return nil, nil, fault.WrongState.Errorf("container %s is running: cannot delete it", ref.ID)
	}
	if c, ok := x.forked[ref.ID]; ok {
		c.signal(unix.SIGKILL, true) // what an executor has left that died
	}
	delete(x.known, ref.ID)
	delete(x.forked, ref.ID)
	return nil, nil, nil
}

func (x *Executor) exec(from *conn, req wire.ExecRequest) (any, []*os.File, error) {
	c, err := x.find(req.ID)
	if err != nil {
		return nil, nil, err
	}
	var p specs.Process
	if err := json.Unmarshal(req.Process, &p); err != nil {
		return nil, nil, fault.Invalid.Errorf("process: %w", err)
	}
	if strings.HasPrefix(filepath.Base(p.Args[0]), "missing") {
		return nil, nil, fault.Invalid.Errorf("exec: %q: no such file or directory", p.Args[0])
	}
	s, err := newStdio(req.Stdin, req.TTY)
	if err != nil {
		return nil, nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if c.exit != nil || c.init.ended() {
		s.close()
		wire.CloseAll(s.theirs)
		return nil, nil, fault.WrongState.Errorf("container %s is not running", req.ID)
	}
	x.serial++
	id := fmt.Sprintf("exec-%d", x.serial)
	proc := newProcess(s.print, s.in(), func([]string) {})
	x.execs[id] = &execution{from, proc}
	x.terminals = append(x.terminals, [2]uint16{req.Width, req.Height})
	c.mu.Lock()
	c.procs = append(c.procs, proc)
	c.mu.Unlock()
	go func() {
		proc.runScript(p.Args)
		s.close()
	}()
	return wire.ExecReply{ExecID: id, Pid: 1<<30 + x.serial}, s.theirs, nil
}

func (x *Executor) execWait(ctx context.Context, c *conn, ref wire.ExecRef) (any, []*os.File, error) {
	x.mu.Lock()
	e, ok := x.execs[ref.ExecID]
	x.mu.Unlock()
	if !ok {
		return nil, nil, fault.NotFound.Errorf("no exec %s", ref.ExecID)
	}
	select {
	case <-e.proc.done:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	case <-c.gone:
		return nil, nil, fault.Unavailable.Errorf("executor: connection lost during exec.wait")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.execs, ref.ExecID)
	return wire.ExecWaitReply{Code: e.proc.code}, nil, nil
}

func (x *Executor) execKill(ref wire.ExecRef) (any, []*os.File, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e, ok := x.execs[ref.ExecID]; ok {
		e.proc.kill()
	}
	return nil, nil, nil
}

func (x *Executor) attach(req wire.AttachRequest) (any, []*os.File, error) {
	c, err := x.find(req.ID)
	if err != nil {
		return nil, nil, err
	}
	s, err := newStdio(req.Stdin && c.stdin != nil, false)
	if err != nil {
		return nil, nil, err
	}
	if c.req.TTY {
		s.stderr.Close()
		s.stderr = nil
		s.theirs = slices.DeleteFunc(s.theirs, func(f *os.File) bool {
			return f.Name() == wire.FDStderr && f.Close() == nil
		})
	}
	if in := s.in(); in != nil {
		go func() {
			_, err := io.Copy(c.stdin, in)
			s.stdin.Close()
			if c.req.StdinOnce || errors.Is(err, io.ErrClosedPipe) {
				c.stdin.Close()
			}
		}()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	c.attach(s)
	return nil, s.theirs, nil
}

// touch answers for what changes nothing here.
func (x *Executor) touch(method, id string) error {
	c, err := x.find(id)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if c.exit != nil {
		return fault.WrongState.Errorf("container %s is not running", id)
	}
	if method == wire.MethodResize && !c.req.TTY {
		return fault.Invalid.Errorf("container %s has no terminal", id)
	}
	if method == wire.MethodReopenLog && c.req.LogPath != "" {
		f, err := os.OpenFile(c.req.LogPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
		if err != nil {
			return err
		}
		return f.Close()
	}
	return nil
}

// shutdown also ends the connections: its caller waits for that for a second.
func (x *Executor) shutdown() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.known) > 0 {
		return fault.WrongState.Errorf("executor has %d containers", len(x.known))
	}
	go x.CutConnections()
	return nil
}
