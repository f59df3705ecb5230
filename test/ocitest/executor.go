package ocitest

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/oci/wire"
)

// An Executor is a fake crisp-executor. Processes that it has forked outlive its crash.
type Executor struct {
	fuse *Fuse

	mu     sync.Mutex
	forked map[string]*container // all containers that were started and not deleted; guarded by mu
	known  map[string]*container // by the current executor; guarded by mu
	execs  map[string]*execution // guarded by mu
	conns  map[*conn]bool        // true = subscribed; guarded by mu
	fail   map[string]error      // guarded by mu
	blocks map[string]chan struct{}
	slow   time.Duration            // duration of run; guarded by mu
	coming map[string]chan struct{} // containers being started, closed when one is killed before that; guarded by mu
	groups map[string]string        // guarded by mu
	frozen map[string]bool          // guarded by mu
	calls  []string                 // guarded by mu
	serial int                      // guarded by mu

	terminals [][2]uint16 // width and height that each exec was started with; guarded by mu
}

// Terminals returns the width and height that each exec was started with.
func (x *Executor) Terminals() [][2]uint16 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.terminals)
}

func newExecutor(fuse *Fuse) *Executor {
	return &Executor{
		fuse: fuse, forked: make(map[string]*container), known: make(map[string]*container),
		execs: make(map[string]*execution), conns: make(map[*conn]bool),
		fail: make(map[string]error), blocks: make(map[string]chan struct{}), coming: make(map[string]chan struct{}), frozen: make(map[string]bool),
	}
}

// ErrPanic makes a fake panic instead of failing with it.
var ErrPanic = errors.New("panic")

// Failure returns err, the failure that a test has requested, unless that is ErrPanic.
func Failure(err error) error {
	if err == ErrPanic {
		panic("bug")
	}
	return err
}

// Fail makes calls of method fail with err until it is nil.
func (x *Executor) Fail(method string, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.fail[method] = err
}

// Cgroups makes containers that are started from now on use directories that the test
// has made, by controller as in wire.RunReply.
func (x *Executor) Cgroups(dirs map[string]string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.groups = dirs
}

// Block makes calls of method wait, before they do anything, until release is
// called.
func (x *Executor) Block(method string) (release func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	block := make(chan struct{})
	x.blocks[method] = block
	return sync.OnceFunc(func() {
		x.mu.Lock()
		delete(x.blocks, method)
		x.mu.Unlock()
		close(block)
	})
}

// SlowRun makes each run take d, during which the container is not listed and cannot be
// deleted, and SIGKILL cancels its start. A run continues when its connection is lost.
func (x *Executor) SlowRun(d time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.slow = d
}

// Calls returns the calls of method so far, as the IDs that they were about.
func (x *Executor) Calls(method string) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var ids []string
	for i := 0; i < len(x.calls); i += 2 {
		if x.calls[i] == method {
			ids = append(ids, x.calls[i+1])
		}
	}
	return ids
}

// Alive returns how many processes of a container run.
func (x *Executor) Alive(id string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.forked[id].alive()
}

// Request returns the request with which a container was started that still exists.
func (x *Executor) Request(id string) (req wire.RunRequest, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	c, ok := x.forked[id]
	if ok {
		req = c.req
	}
	return req, ok
}

// KillAll kills the processes of a container.
func (x *Executor) KillAll(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c, ok := x.forked[id]; ok {
		c.signal(unix.SIGKILL, true)
	}
}

// Detach closes the output of all clients attached to a container, which keeps running, as
// the executor does to clients that do not read.
func (x *Executor) Detach(id string) {
	x.mu.Lock()
	c := x.known[id]
	x.mu.Unlock()
	if c != nil {
		c.detach()
	}
}

// KillForMemory has the OOM killer kill a process of a container, but not its init.
func (x *Executor) KillForMemory(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := x.forked[id]
	c.kills++
	if x.known[id] == c {
		x.publish(wire.Event{Kind: wire.EventOOM, ID: id, Kills: c.kills})
	}
}

// Known returns the containers that the executor has and was not asked to delete.
func (x *Executor) Known() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var ids []string
	for id := range x.known {
		ids = append(ids, id)
	}
	return ids
}

// Crash kills the executor: all connections are lost, and all that it knew. The
// containers keep running. The next Dial reaches a new one.
func (x *Executor) Crash() {
	x.mu.Lock()
	clear(x.known)
	clear(x.execs)
	x.mu.Unlock()
	x.CutConnections()
}

// CutConnections closes all connections, and does nothing else, as an upgrade does.
func (x *Executor) CutConnections() {
	x.mu.Lock()
	conns := make([]*conn, 0, len(x.conns))
	for c := range x.conns {
		conns = append(conns, c)
	}
	x.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

// reboot ends everything, as a reboot of the machine does.
func (x *Executor) reboot() {
	x.Crash()
	x.end()
	x.mu.Lock()
	defer x.mu.Unlock()
	clear(x.forked)
}

// end kills all processes. Their exits are not recorded: the test's directories are about to be
// removed.
func (x *Executor) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	clear(x.known)
	for _, c := range x.forked {
		c.signal(unix.SIGKILL, true)
	}
	for _, e := range x.execs {
		e.proc.kill()
	}
}

// Dial implements oci.Options.Dial.
func (x *Executor) Dial(context.Context) (oci.ExecutorConn, error) {
	c := &conn{x: x, events: make(chan wire.Event, 1024), gone: make(chan struct{})}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.conns[c] = false
	return c, nil
}

// publish sends an event to all subscribers. The caller holds mu.
func (x *Executor) publish(e wire.Event) {
	for c, subscribed := range x.conns {
		if subscribed {
			c.events <- e
		}
	}
}

// A conn is one connection to an Executor.
type conn struct {
	x      *Executor
	events chan wire.Event
	once   sync.Once
	gone   chan struct{}
}

// Events implements oci.ExecutorConn.
func (c *conn) Events() <-chan wire.Event { return c.events }

// Close implements oci.ExecutorConn.
func (c *conn) Close() error {
	c.once.Do(func() {
		c.x.mu.Lock()
		defer c.x.mu.Unlock()
		delete(c.x.conns, c)
		for _, e := range c.x.execs {
			if e.conn == c {
				e.proc.kill()
			}
		}
		close(c.gone)
		close(c.events)
	})
	return nil
}

// Pid is that of the test: there is no process.
func (c *conn) Pid() (int, error) { return os.Getpid(), nil }

// Kill ends the executor, as a wire.Client's does.
func (c *conn) Kill() error {
	c.x.Crash()
	return nil
}

// Call implements oci.ExecutorConn.
func (c *conn) Call(ctx context.Context, method string, req, reply any, send ...*os.File) (recv []*os.File, err error) {
	select {
	case <-c.gone:
		return nil, fault.Unavailable.Errorf("executor: connection lost")
	default:
	}
	if method == wire.MethodWarm {
		return nil, nil // a start cannot be made faster here
	}
	// Requests and replies go through JSON, as they do on the wire.
	body, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	var target struct{ ID string }
	_ = json.Unmarshal(body, &target) // not every request is about a container
	c.x.mu.Lock()
	if method != wire.MethodPing { // pings come at any time
		c.x.calls = append(c.x.calls, method, target.ID)
	}
	failure, block := c.x.fail[method], c.x.blocks[method]
	c.x.mu.Unlock()
	failure = Failure(failure)
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.gone:
			return nil, fault.Unavailable.Errorf("executor: connection lost during %s", method)
		}
	}
	if failure != nil || method == wire.MethodPing {
		return nil, failure
	}
	var answer any
	err = c.x.fuse.Step(method, func() (err error) {
		select {
		case <-c.gone: // while waiting for the step
			return fault.Unavailable.Errorf("executor: connection lost during %s", method)
		default:
		}
		answer, recv, err = c.serve(ctx, method, body, send)
		return err
	})
	if err != nil {
		wire.CloseAll(recv)
		return nil, err
	}
	if reply == nil || answer == nil {
		return recv, nil
	}
	data, err := json.Marshal(answer)
	if err != nil {
		return recv, err
	}
	return recv, json.Unmarshal(data, reply)
}

// serve carries out one call. A slow run outlives its connection, and its answer is
// lost then.
func (c *conn) serve(ctx context.Context, method string, body []byte, send []*os.File) (any, []*os.File, error) {
	c.x.mu.Lock()
	slow := c.x.slow
	c.x.mu.Unlock()
	if method != wire.MethodRun || slow == 0 {
		return c.x.serve(ctx, c, method, body, send)
	}
	var ref wire.Ref
	if err := json.Unmarshal(body, &ref); err != nil {
		return nil, nil, err
	}
	killed := c.x.comes(ref.ID)
	type result struct {
		answer any
		recv   []*os.File
		err    error
	}
	done := make(chan result, 1)
	go func() {
		select {
		case <-time.After(slow):
		case <-killed:
		}
		if !c.x.came(ref.ID) {
			done <- result{err: fault.WrongState.Errorf("start of container %s was given up: it was killed before its program ran", ref.ID)}
			return
		}
		answer, recv, err := c.x.serve(ctx, c, method, body, nil)
		done <- result{answer, recv, err}
	}()
	select {
	case r := <-done:
		return r.answer, r.recv, r.err
	case <-c.gone:
		return nil, nil, fault.Unavailable.Errorf("executor: connection lost during %s", method)
	}
}

// comes records that a container is being started. The channel is closed when it is
// killed.
func (x *Executor) comes(id string) <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	killed := make(chan struct{})
	x.coming[id] = killed
	return killed
}

// came undoes comes, and reports whether the container may start.
func (x *Executor) came(id string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	killed := x.coming[id]
	delete(x.coming, id)
	select {
	case <-killed:
		return false
	default:
		return true
	}
}
