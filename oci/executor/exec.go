package executor

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/executor/gate"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/executor/runtime"
	"github.com/crisp-cri/crisp/oci/executor/stdio"
	"github.com/crisp-cri/crisp/oci/wire"
)

// An execution is one exec: a process beside a container's own, which can be killed with everything
// that it started: by a cgroup below the container's (groupsExecs), or by its session.
type execution struct {
	id    string
	c     *container
	proc  *proc.Process
	group map[string]string // its sub-cgroup by hierarchy; nil if it has none
	task  *runtime.TaskExec // in a shim's container; else nil
	input *stdio.Streams    // what its client types, on the way to the shim; nil = nothing
	owner *wire.Conn        // guarded by execs.mu; nil after an upgrade until claimed
	ended chan struct{}     // closed when code is known
	once  sync.Once         // to close it
	gone  chan struct{}     // closed when it has left the table
	code  int32
}

func (x *Executor) exec(ctx context.Context, from *wire.Conn, req wire.ExecRequest) (*wire.ExecReply, []*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, execBound)
	defer cancel()
	x.gate.Begin()
	defer x.gate.End() // not before it is in the table, or a failure is rolled back
	e, ends, err := x.beginExec(ctx, from, req)
	if err != nil {
		return nil, nil, err
	}
	x.execs.register(e)
	// The container's processes may have been killed before this one was in its cgroup.
	if c := e.c; !c.ownPID && c.proc.Ending() {
		if err := fault.Protect(e.kill); err != nil {
			x.log.Warn("exec in an ended container could not be killed", "container", c.ID, "pid", e.proc.PID, "err", err)
		}
	}
	files := ends.Passed()
	if ctx.Err() != nil { // its exit code will not be asked for
		wire.CloseAll(files)
		go x.execs.abandonIf(e, func() bool { return true })
		return nil, nil, proc.GivenUp(ctx, "exec in container "+req.ID)
	}
	return &wire.ExecReply{ExecID: e.id, Pid: e.proc.PID}, files, nil
}

func (x *Executor) beginExec(ctx context.Context, from *wire.Conn, req wire.ExecRequest) (_ *execution, _ *stdio.Ends, err error) {
	c, err := x.table.runs(req.ID)
	if err != nil {
		return nil, nil, err
	}
	leave, err := x.table.enter(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	var failed error
	defer func() { // after the rollback
		if stuck := new(proc.StuckError); errors.As(failed, &stuck) {
			stuck.WhenOver(leave) // it may start a process yet
		} else {
			leave()
		}
	}()
	var steps undo.Stack
	defer steps.RunIf(&err)
	if req.Fast || !cgroups.IsCgroup2UnifiedMode() {
		x.warmer.Warm() // on v2 libcontainer starts it in its cgroup
	}
	var spec specs.Process
	if err := json.Unmarshal(req.Process, &spec); err != nil {
		return nil, nil, fault.Invalid.Errorf("process in container %s: %w", c.ID, err)
	}
	if req.Width > 0 && req.Height > 0 {
		spec.ConsoleSize = &specs.Box{Width: uint(req.Width), Height: uint(req.Height)}
	}
	x.limits.Clamp(&spec)
	p, err := x.runtimes.PlanExec(&spec, req)
	if err != nil {
		return nil, nil, err
	}

	e := x.execs.open(c, from)
	if c.groupsExecs() && c.runtime.Subgroups() {
		e.makeGroup()
	}
	steps.Add("cgroup of exec", e.endGroup)
	p.In(runtime.Place{ID: e.id, Init: c.proc, Cgroups: c.ref.Cgroups, Group: e.group})
	begun, err := c.runtime.Exec(ctx, p)
	p.Close(err)
	if failed = err; err != nil {
		if ended := x.table.endsUnder(c); ended != nil {
			return nil, nil, ended
		}
		return nil, nil, err
	}
	steps.Add("stdio", begun.Stdio.Close)
	steps.Add("process", begun.End)
	if begun.Process != nil {
		err = x.relay(e, begun, req)
	} else {
		e.proc, err = proc.Open(begun.PID)
	}
	if err != nil {
		return nil, nil, err
	}
	begun.Served()
	return e, begun.Stdio, nil
}

// kill kills the process and everything that it started: what is in the sub-cgroup, which all
// inherit, or else what endTree finds.
func (e *execution) kill() error {
	if e.task != nil && !e.isHere() {
		return e.proc.Signal(unix.SIGKILL)
	}
	if e.group == nil {
		return e.endTree()
	}
	err := proc.SignalAll(e.group, unix.SIGKILL)
	if perr := e.proc.Signal(unix.SIGKILL); err == nil {
		err = perr
	}
	return err
}

// makeGroup creates the sub-cgroup, in v1's freezer or in the v2 hierarchy. Without a sub-cgroup the
// exec runs in the container's own cgroup, and its session tells what belongs to it.
func (e *execution) makeGroup() {
	controller := groupController(e.c.ref.Cgroups)
	base := e.c.ref.Cgroups[controller]
	dir := filepath.Join(base, "exec-"+e.id)
	if base == "" || os.Mkdir(dir, 0o755) != nil {
		return
	}
	// Beside threaded cgroups it cannot hold processes ("domain invalid", cgroups(7)).
	if kind, err := os.ReadFile(filepath.Join(dir, "cgroup.type")); err == nil && strings.TrimSpace(string(kind)) != "domain" {
		unix.Rmdir(dir)
		return
	}
	e.group = map[string]string{controller: dir}
}

// groupController returns the hierarchy in which execs have cgroups.
func groupController(paths map[string]string) string {
	if paths["freezer"] != "" {
		return "freezer"
	}
	return ""
}

// The pauses between two attempts to remove an exec's cgroup, in which processes that it left
// behind live on, double from groupRetry up to groupRetryMax.
const (
	groupRetry    = 100 * time.Millisecond
	groupRetryMax = time.Minute
)

// removeGroup removes the cgroup of an exec that has ended as soon as it is empty.
func (e *execution) removeGroup() {
	for _, dir := range e.group {
		removeEmpty(dir, backoff.New(groupRetry, groupRetryMax), e.c.gone)
	}
}

// endGroup is removeGroup for an exec that failed. An engine may have started the process before
// it failed; that process then has no owner.
func (e *execution) endGroup() error {
	defer e.removeGroup()
	if e.group == nil {
		return nil
	}
	return proc.SignalAll(e.group, unix.SIGKILL)
}

// removeEmpty removes a cgroup as soon as it is empty, until its container is gone.
func removeEmpty(dir string, pause *backoff.Backoff, gone <-chan struct{}) {
	if err := unix.Rmdir(dir); err != unix.EBUSY && err != unix.ENOTEMPTY {
		return
	}
	select {
	case <-gone: // delete removes all of them
		return
	default:
	}
	time.AfterFunc(pause.Next(), func() { removeEmpty(dir, pause, gone) })
}

// execGroup is the name of an exec's cgroup: a session and a number.
var execGroup = regexp.MustCompile(`^exec-([0-9a-z]+)-[0-9a-z]+$`)

// endForeign kills the execs of a dead executor in c: they have lost their stdio, their exit codes
// will not be asked for, and no timeout would end them. Those of an engine without sub-cgroups
// cannot be found on cgroup v1. root is libcontainer's state directory.
func (t *execs) endForeign(c *container, root string) error {
	controller := groupController(c.ref.Cgroups)
	base := c.ref.Cgroups[controller]
	if base == "" {
		return nil
	}
	entries, err := os.ReadDir(base)
	if err != nil {
		return nil // the container is gone
	}
	var errs []error
	if cgroups.IsCgroup2UnifiedMode() {
		errs = append(errs, proc.End(proc.Foreign(c.proc, c.ref.Cgroups, root)))
	}
	for _, entry := range entries { // before cgroup v2 went without, and in the host's PID namespace
		m := execGroup.FindStringSubmatch(entry.Name())
		if m == nil || !entry.IsDir() || m[1] == t.session {
			continue
		}
		dir := filepath.Join(base, entry.Name())
		errs = append(errs, proc.SignalAll(map[string]string{controller: dir}, unix.SIGKILL))
		removeEmpty(dir, backoff.New(groupRetry, groupRetryMax), c.gone)
	}
	return errors.Join(errs...)
}

// removeSpentGroups is removeGroup for the execs of c that ended before an upgrade.
func (t *execs) removeSpentGroups(c *container) {
	live := make(map[string]bool)
	t.mu.Lock()
	for _, e := range t.all {
		select {
		case <-e.ended: // its code has still to be reported
		default:
			live["exec-"+e.id] = true
		}
	}
	t.mu.Unlock()
	base := c.ref.Cgroups[groupController(c.ref.Cgroups)]
	entries, _ := os.ReadDir(base)
	for _, entry := range entries {
		if base != "" && entry.IsDir() && execGroup.MatchString(entry.Name()) && !live[entry.Name()] {
			removeEmpty(filepath.Join(base, entry.Name()), backoff.New(groupRetry, groupRetryMax), c.gone)
		}
	}
}

// endTree kills an exec without a cgroup of its own.
func (e *execution) endTree() error {
	session := proc.Session(e.proc, e.c.ref.Cgroups)
	err := proc.End(session)
	if kerr := e.proc.Signal(unix.SIGKILL); kerr != nil {
		return kerr
	}
	return errors.Join(err, proc.End(session)) // what it was forking when it was stopped
}

// groupsExecs reports whether execs in c have cgroups below the container's: on cgroup v1 only in
// freezer, where no program looks for limits. On cgroup v2 only a container in the host's PID
// namespace has them, where what an executor that was killed has left could not be told from other
// processes.
func (c *container) groupsExecs() bool {
	return !cgroups.IsCgroup2UnifiedMode() || !proc.OwnPIDs(c.proc.PID)
}

// An execs is the table of execs. An exec that has ended stays there until its code is reported.
type execs struct {
	log     *slog.Logger
	gate    *gate.Gate
	reaper  *proc.Reaper
	session string // distinguishes its execs from those of other executors

	mu   sync.Mutex
	last uint64                // guarded by mu
	all  map[string]*execution // guarded by mu
}

func newExecs(log *slog.Logger, g *gate.Gate, r *proc.Reaper) *execs {
	return &execs{log: log, gate: g, reaper: r, session: strconv.FormatInt(time.Now().UnixMicro(), 36), all: make(map[string]*execution)}
}

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
	if e.task == nil {
		t.reaper.Know(e.proc.PID)
	}
	t.mu.Lock()
	t.all[e.id] = e
	owner := e.owner
	t.mu.Unlock()
	go t.attend(e)
	if owner != nil {
		go t.guard(e, owner)
	}
}

// attend watches an exec to its end. If that panics time and again, whoever waits for the code must
// not do so for ever.
func (t *execs) attend(e *execution) {
	if !gate.Retry(t.log, "exec", e.c.ID, func() { t.watch(e) }) {
		e.end(255)
	}
}

// watch waits for the process and keeps its exit code for exec.wait.
func (t *execs) watch(e *execution) {
	if err := e.proc.Wait(); err != nil {
		t.log.Error("exec cannot be waited for", "container", e.c.ID, "pid", e.proc.PID, "err", err)
	}
	t.gate.Enter()
	defer t.gate.Leave()
	code, err := e.proc.Code()
	e.proc.Reap()
	if err != nil {
		t.log.Error("exit code of exec is lost", "container", e.c.ID, "pid", e.proc.PID, "err", err)
	}
	if e.task != nil {
		go e.forgetTask()
	} else {
		t.reaper.Forget(e.proc.PID)
	}
	e.end(code)
	e.removeGroup()
}

// end sets the exit code, once.
func (e *execution) end(code int32) {
	e.once.Do(func() {
		e.code = code
		close(e.ended)
	})
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

// abandonIf ends an exec whose exit code will not be asked for, if it is still in the table and left,
// called with mu held, returns true.
func (t *execs) abandonIf(e *execution, left func() bool) {
	if !t.killIf(e, left) {
		return
	}
	<-e.ended
	t.forget(e)
}

func (t *execs) killIf(e *execution, left func() bool) bool {
	t.gate.Enter()
	defer t.gate.Leave()
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
		t.log.Warn("abandoned exec could not be killed", "container", e.c.ID, "pid", e.proc.PID, "err", err)
	}
	return true
}

func (t *execs) forget(e *execution) {
	t.mu.Lock()
	if t.all[e.id] == e {
		delete(t.all, e.id)
		e.proc.Close()
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
