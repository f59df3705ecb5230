package executor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/executor/limits"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/wire"
)

// settleLife bounds how long a list waits for calls that a killed crispd left behind.
const settleLife = time.Second

// Call serves one call; it implements wire.Handler. Package wire documents each call at its
// request.
func (x *Executor) Call(ctx context.Context, from *wire.Conn, call *wire.Call) (any, []*os.File, error) {
	switch call.Method {
	case wire.MethodHello:
		return wire.HelloReply{Version: x.opts.Version, Protocol: wire.Protocol, Pid: os.Getpid()}, nil, nil
	case wire.MethodPing:
		x.gate.Enter()
		x.gate.Leave()
		return nil, nil, nil
	case wire.MethodList:
		// A container that a killed crispd was just starting must not be mistaken for one that
		// never ran, or it would run twice. Its call may not even have been read: then neither
		// our table nor "delete" knows it, so that crispd's handling of interrupted starts
		// (oci's outcome) is not enough. Nor is this: a start may take longer than the caller of
		// list should wait. A start that has not begun by then never will (reserve).
		ctx, cancel := context.WithTimeout(ctx, settleLife)
		defer cancel()
		from.Settle(ctx)
		return x.table.list(), nil, nil
	case wire.MethodSubscribe:
		x.subscribers.add(from)
		return nil, nil, nil
	case wire.MethodWarm:
		x.warmer.Warm()
		return nil, nil, nil
	case wire.MethodRun:
		return x.run(ctx, from, call)
	case wire.MethodRestore:
		return with(call, func(req wire.RestoreRequest) (any, []*os.File, error) { return x.restore(ctx, from, req) })
	case wire.MethodPodInit:
		return with(call, func(req wire.PodInitRequest) (any, []*os.File, error) { return x.podInit(ctx, from, req) })
	case wire.MethodExec:
		return with(call, func(req wire.ExecRequest) (any, []*os.File, error) { return x.exec(ctx, from, req) })
	case wire.MethodExecWait:
		return with(call, func(req wire.ExecRef) (any, []*os.File, error) {
			reply, err := x.execs.wait(ctx, from, call, req.ExecID)
			return reply, nil, err
		})
	case wire.MethodExecKill:
		return plain(call, func(req wire.ExecRef) error { return x.execs.kill(req.ExecID) })
	case wire.MethodSignal:
		return plain(call, x.signal)
	case wire.MethodDelete:
		return plain(call, func(req wire.Ref) error { return x.delete(req.ID) })
	case wire.MethodAttach:
		return with(call, func(req wire.AttachRequest) (any, []*os.File, error) {
			return x.table.running(req.ID, func(c *container) ([]*os.File, error) {
				return c.io.Attach(from.Pid(), req.Stdin && c.Stdin, c.TTY, &x.gate, x.log)
			})
		})
	case wire.MethodDescriptors:
		return with(call, func(req wire.Ref) (any, []*os.File, error) { return x.table.running(req.ID, (*container).descriptors) })
	case wire.MethodResize:
		return plain(call, x.resize)
	case wire.MethodStats:
		return with(call, func(req wire.Ref) (any, []*os.File, error) { return x.stats(ctx, req.ID) })
	case wire.MethodExecResize:
		return plain(call, x.execs.resize)
	case wire.MethodReopenLog:
		return plain(call, func(req wire.Ref) error { return x.reopenLog(req.ID) })
	case wire.MethodUpdate:
		return plain(call, x.update)
	case wire.MethodFreeze:
		return plain(call, func(req wire.FreezeRequest) error { return x.freeze(ctx, from, req) })
	case wire.MethodThaw:
		return plain(call, x.thaw)
	case wire.MethodCheckpoint:
		return plain(call, func(req wire.CheckpointRequest) error { return x.checkpoint(ctx, req) })
	case wire.MethodAdopt:
		return plain(call, func(req wire.AdoptRequest) error { return x.adopt(req, call) })
	case wire.MethodUpgrade:
		return plain(call, func(req wire.UpgradeRequest) error { return x.upgrade(req, call) })
	case wire.MethodProfile:
		return with(call, profile)
	case wire.MethodShutdown:
		return nil, nil, x.shutdown(call)
	}
	return nil, nil, fault.Invalid.Errorf("unknown method %q", call.Method)
}

// with calls f with the decoded request.
func with[Req any](call *wire.Call, f func(Req) (any, []*os.File, error)) (any, []*os.File, error) {
	var req Req
	if err := call.Decode(&req); err != nil {
		return nil, nil, err
	}
	return f(req)
}

func plain[Req any](call *wire.Call, f func(Req) error) (any, []*os.File, error) {
	return with(call, func(req Req) (any, []*os.File, error) { return nil, nil, f(req) })
}

// running answers a call about a running container with what f returns.
func (t *table) running(id string, f func(*container) ([]*os.File, error)) (any, []*os.File, error) {
	c, err := t.runs(id)
	if err != nil {
		return nil, nil, err
	}
	files, err := f(c)
	return nil, files, err
}

// shutdown serves MethodShutdown. The answer is sent before the process exits.
func (x *Executor) shutdown(call *wire.Call) error {
	if n := x.table.count(); n > 0 {
		return fault.WrongState.Errorf("executor has %d containers", n)
	}
	call.Then = func() {
		if err := x.Close(); err != nil {
			x.log.Warn("executor did not shut down", "err", err) // a container was started meanwhile
		}
	}
	return nil
}

// reopenLog serves MethodReopenLog. It does not wait for a stop in progress: a stopping
// container runs until it has ended.
func (x *Executor) reopenLog(id string) error {
	c, err := x.table.runs(id)
	if err != nil {
		return err
	}
	return c.io.ReopenLog(&x.gate)
}

// profile serves wire.ProfileRequest.
func profile(req wire.ProfileRequest) (any, []*os.File, error) {
	data, err := profileNow(req)
	return wire.ProfileReply{Data: data}, nil, err
}

// profileNow returns a profile. A memory profile shows what is reachable now: it begins
// with a garbage collection.
func profileNow(req wire.ProfileRequest) ([]byte, error) {
	if !slices.Contains([]string{"goroutine", "heap", "allocs"}, req.Name) {
		return nil, fault.NotFound.Errorf("executor has no profile %q", req.Name)
	}
	if req.Name == "heap" {
		runtime.GC()
	}
	var b bounded
	if err := pprof.Lookup(req.Name).WriteTo(&b, req.Debug); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// bounded accepts at most wire.MaxProfile bytes.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > wire.MaxProfile {
		return 0, fault.Invalid.Errorf("profile of more than %d bytes", wire.MaxProfile)
	}
	return b.Buffer.Write(p)
}

// A subscribers is the set of clients that subscribed to events.
type subscribers struct {
	mu  sync.Mutex
	all map[*wire.Conn]struct{} // guarded by mu
}

func (s *subscribers) publish(e wire.Event) {
	s.mu.Lock()
	to := slices.Collect(maps.Keys(s.all))
	s.mu.Unlock()
	for _, c := range to {
		c.Emit(e)
	}
}

// add subscribes c until its connection ends.
func (s *subscribers) add(c *wire.Conn) {
	s.mu.Lock()
	if s.all == nil {
		s.all = make(map[*wire.Conn]struct{})
	}
	s.all[c] = struct{}{}
	s.mu.Unlock()
	go func() {
		<-c.Done()
		s.mu.Lock()
		delete(s.all, c)
		s.mu.Unlock()
	}()
}

func (x *Executor) signal(req wire.SignalRequest) error {
	sig := unix.Signal(req.Signal)
	c, over, err := x.table.toSignal(req.ID, sig)
	if c == nil {
		return err
	}
	c.sent.Or(1 << (uint(sig) - 1))
	switch {
	case c.task != nil && over: // Forget has ended the rest
		return nil
	case c.task != nil:
		return c.task.Signal(sig, req.All)
	case req.All:
		err := proc.SignalAll(c.ref.Cgroups, sig)
		if sig == unix.SIGKILL && !over {
			// It may have been moved to another cgroup. Its PID namespace ends with it.
			err = errors.Join(err, c.proc.Signal(sig))
		}
		return err
	case over:
		return nil
	}
	if err := c.proc.Signal(sig); err != nil {
		return err
	}
	if sig == unix.SIGKILL {
		proc.ThawAll(c.ref.Cgroups)
	}
	return nil
}

// toSignal returns the container to signal, and whether it has ended. nil without an error means
// that it was starting and its start has been cancelled.
func (t *table) toSignal(id string, sig unix.Signal) (c *container, over bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, ok := t.containers[id]
	switch {
	case !ok:
		return nil, false, fault.NotFound.Errorf("no container %q", id)
	case c.phase != starting:
		return c, c.phase >= ended, nil
	case sig == unix.SIGKILL && c.giveUp != nil:
		c.toKill = true
		c.giveUp(errKilled)
		return nil, false, nil
	}
	return nil, false, fault.WrongState.Errorf("container %s is starting", id)
}

// delete serves MethodDelete: it removes the cgroup and libcontainer's state of a container that
// has ended, after killing its remaining processes. An unknown container is no error, and
// leftovers of a crash are removed for it, too.
//
// The error is fault.Unavailable if a process does not die yet; try again.
func (x *Executor) delete(id string) (err error) {
	x.gate.Begin()
	defer x.gate.End()
	var steps undo.Stack
	defer steps.RunIf(&err)
	c, err := x.table.beginDelete(id)
	if err != nil {
		return err
	}
	if c == nil {
		x.buffers.Forget(id)
		return x.runtimes.Sweep(id)
	}
	steps.Add("deletion", func() error { x.table.edit(func() { c.phase = ended }); return nil })
	if c.task == nil {
		if err := proc.End(proc.InCgroup(c.ref.Cgroups)); err != nil {
			return err
		}
	}
	if err := c.runtime.Remove(); err != nil {
		return err
	}
	x.table.release(c)
	return nil
}

// update serves wire.UpdateRequest: it applies the limits in the request on top of the current
// ones; if any part is refused, all of it is undone.
func (x *Executor) update(req wire.UpdateRequest) (err error) {
	var r specs.LinuxResources
	if len(req.Resources) > 0 {
		if err := json.Unmarshal(req.Resources, &r); err != nil {
			return fault.Invalid.Errorf("resources: %w", err)
		}
	}
	c, err := x.table.runs(req.ID)
	if err != nil {
		return err
	}
	x.gate.Begin()
	defer x.gate.End()
	c.updating.Lock()
	defer c.updating.Unlock()
	paths := c.ref.Cgroups
	if len(paths) == 0 { // a shim has it elsewhere
		return c.runtime.Update(&r, nil)
	}
	if err := limits.Fits(c.ID, paths, r.Memory); err != nil {
		return err
	}
	var steps undo.Stack
	defer steps.RunIf(&err)
	score := req.OOMScoreAdj
	if score != nil {
		least := x.limits.AtLeast(*score)
		score = &least
		old := make(limits.Scores)
		steps.Add("oom_score_adj", old.Restore)
		if err := old.Replace(paths, least); err != nil {
			return fmt.Errorf("update container %s: %w", c.ID, limits.Refusal(err))
		}
	}
	// libcontainer restores the limits that it was given before; limits that were never set stay
	// in force.
	files := limits.ReadFiles(paths, r.Unified)
	steps.Add("unit", func() error { return files.RestoreUnit(limits.ScopeOf(paths)) }) // after the files
	steps.Add("limits", files.Restore)
	if err := c.runtime.Update(&r, score); err != nil {
		if ended := x.table.endsUnder(c); ended != nil {
			return ended
		}
		if ferr := limits.Fits(c.ID, paths, r.Memory); ferr != nil { // it has grown meanwhile
			return ferr
		}
		for _, dir := range paths {
			if _, serr := os.Stat(dir); serr != nil {
				return fault.WrongState.Errorf("update container %s, which has lost a cgroup: %w: %w", c.ID, serr, err)
			}
		}
		return fmt.Errorf("update container %s: %w", c.ID, err)
	}
	return nil
}
