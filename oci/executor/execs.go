package executor

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// An execs is the table of execs. An exec that has ended stays there until its code is reported.
type execs struct {
	log     *slog.Logger
	gate    *gate
	reaper  *reaper
	session string // distinguishes its execs from those of other executors

	mu   sync.Mutex
	last uint64                // guarded by mu
	all  map[string]*execution // guarded by mu
}

func newExecs(log *slog.Logger, g *gate, r *reaper) *execs {
	return &execs{log: log, gate: g, reaper: r, session: strconv.FormatInt(time.Now().UnixMicro(), 36), all: make(map[string]*execution)}
}

// count returns the number of execs.
func (t *execs) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all)
}

// open creates an exec; register begins it.
func (t *execs) open(c *container, from *wire.Conn) *execution {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	return &execution{id: t.session + "-" + strconv.FormatUint(t.last, 10), c: c, owner: from, ended: make(chan struct{}), gone: make(chan struct{})}
}

// register adds a started exec to the table and watches it.
func (t *execs) register(e *execution) {
	t.reaper.know(e.proc.pid)
	t.mu.Lock()
	t.all[e.id] = e
	owner := e.owner
	t.mu.Unlock()
	go insist(t.log, "exec", e.c.ID, func() { t.watch(e) })
	if owner != nil {
		go t.guard(e, owner)
	}
}

// watch waits for the process and keeps its exit code for exec.wait.
func (t *execs) watch(e *execution) {
	if err := e.proc.wait(); err != nil {
		t.log.Error("exec cannot be waited for", "container", e.c.ID, "pid", e.proc.pid, "err", err)
	}
	t.gate.enter()
	defer t.gate.leave()
	code, err := e.proc.look()
	e.proc.reap()
	if err != nil {
		t.log.Error("exit code of exec is lost", "container", e.c.ID, "pid", e.proc.pid, "err", err)
	}
	t.reaper.forget(e.proc.pid)
	e.code = code
	close(e.ended)
	e.removeGroup()
}

// guard kills the exec when the connection that owns it ends, and removes it. An upgrade ends
// all connections, which must not count: guard then waits behind the gate, and continues only if
// the upgrade fails. crispd has one connection for as long as it runs, with many probes: guard
// ends with the exec.
func (t *execs) guard(e *execution, owner *wire.Conn) {
	select {
	case <-e.gone:
		return
	case <-owner.Done():
	}
	t.abandonIf(e, func() bool { return e.owner == owner })
}

// abandon ends an exec whose exit code nobody will ask for.
func (t *execs) abandon(e *execution) { t.abandonIf(e, func() bool { return true }) }

// abandonIf is abandon if the exec is still in the table and left, called with mu held, returns
// true.
func (t *execs) abandonIf(e *execution, left func() bool) {
	if !t.killIf(e, left) {
		return
	}
	<-e.ended
	t.forget(e)
}

func (t *execs) killIf(e *execution, left func() bool) bool {
	t.gate.enter()
	defer t.gate.leave()
	t.mu.Lock()
	is := t.all[e.id] == e && left()
	t.mu.Unlock()
	if !is {
		return false
	}
	select {
	case <-e.ended: // processes that it left behind live on, as after an exec.wait
		return true
	default:
	}
	if err := e.kill(); err != nil {
		t.log.Warn("abandoned exec could not be killed", "container", e.c.ID, "pid", e.proc.pid, "err", err)
	}
	return true
}

func (t *execs) forget(e *execution) {
	t.mu.Lock()
	if t.all[e.id] == e {
		delete(t.all, e.id)
		e.proc.close()
		close(e.gone)
	}
	t.mu.Unlock()
}

// wait serves MethodExecWait. It removes the exec only after the answer was sent: only the
// executor knows the code.
func (t *execs) wait(ctx context.Context, from *wire.Conn, call *wire.Call, id string) (*wire.ExecWaitReply, error) {
	t.mu.Lock()
	e, ok := t.all[id]
	claimed := ok && e.owner == nil
	if claimed {
		e.owner = from
	}
	t.mu.Unlock()
	if !ok {
		return nil, fault.NotFound.Errorf("no exec %q", id)
	}
	if claimed {
		go t.guard(e, from)
	}
	select {
	case <-e.ended:
		if err := ctx.Err(); err != nil { // the code is for whoever asks next
			return nil, err
		}
		call.Then = func() { t.forget(e) } // an upgrade before that hands the code over
		return &wire.ExecWaitReply{Code: e.code}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// kill serves MethodExecKill.
func (t *execs) kill(id string) error {
	t.mu.Lock()
	e, ok := t.all[id]
	t.mu.Unlock()
	if !ok {
		return nil
	}
	return e.kill()
}
