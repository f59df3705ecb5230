package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci"
)

const (
	// uncollectedLife is how long a finished object waits for a caller to collect it. The kubelet
	// repeats a request within seconds of its own timeout, if it has not much else to do.
	uncollectedLife = 2 * time.Minute
	// hungUpLife is how long a creation goes on, and its object waits, once the last caller has
	// hung up: its pod was deleted, and no caller will return; or it is a kubelet that restarts,
	// and makes the object anew if it takes longer.
	hungUpLife = 10 * time.Second
)

// stageLife limits each stage of a creation. A stage takes less than a second unless something
// hangs, and the kubelet waits four minutes for the whole.
const stageLife = 90 * time.Second

// stageLives are the limits of stages that may legitimately take longer; 0 = no limit.
var stageLives = map[string]time.Duration{
	"cni":     4 * time.Minute, // the kubelet's timeout of RunPodSandbox: plugins wait for clouds and DHCP
	"image":   0,               // a pull, which has its own limit on time without progress
	"volumes": 0,               // copies the image's content there, possibly as much as the whole image

	"relabel volumes": 0, // minutes for a big volume, once; stopping the sandbox aborts it
	"spec":            0, // reads small files of this machine
	"record":          0, // a partly written record must be completed or undone in any case
}

// creations are the objects of one kind that are being created, by name.
//
// A creation belongs to its name and not to the caller who began it. Callers who ask for the
// same object wait for the same creation; each may leave when its context ends. The first caller
// still there at the end takes the object. That delivers it: it is listed, and no longer tracked
// here. An object that no caller takes stays hidden for uncollectedLife or hungUpLife, so that a
// repeated request finds it, and is then undone. Before that it gives way to a request that needs
// what it holds: its name, the pod's name, a host port.
type creations struct {
	ctx  context.Context // ends when the server closes
	work *detached
	log  *slog.Logger
	what string // kind of object, for error messages

	delivered func(id string) // called once per new object; set before use

	mu     sync.Mutex
	byName map[string]*creation // guarded by mu
	hidden map[string]struct{}  // IDs of objects that no caller has received yet; guarded by mu
}

// A creation is one object being made.
type creation struct {
	name   string
	req    proto.Message // must be equal in a repeated request
	began  time.Time
	ctx    context.Context // of the work
	stages *stage.Log      // nil = not recorded
	done   chan struct{}   // closed when the work has ended
	gone   chan struct{}   // closed when the name is free again

	// id is the object's ID, chosen before the object exists; err is the result of the work.
	// discard undoes the finished work. All are written before done is closed.
	id      string
	err     error
	found   bool // the object already existed and was delivered
	discard func(context.Context) error

	mu    sync.Mutex
	stage string // guarded by mu

	cancel context.CancelFunc // cancels the work

	// Guarded by creations.mu.
	waiting  int         // number of callers
	hungUp   bool        // the last caller to leave hung up
	finished bool        // the object exists
	dropped  bool        // being undone, or about to be
	timer    *time.Timer // drops what no caller waits for
}

func newCreations(ctx context.Context, work *detached, log *slog.Logger, what string) *creations {
	return &creations{
		ctx: ctx, work: work, log: log, what: what,
		delivered: func(string) {},
		byName:    make(map[string]*creation),
		hidden:    make(map[string]struct{}),
	}
}

// do returns the ID of the object called name, which build creates, whether this call begins the
// creation or joins one in flight. req holds only what must be equal for two calls to share a
// creation: two requests of the kubelet for one object are never equal as a whole (the order of
// variables, the name of the termination message's file, annotations that CNI has added
// meanwhile). The object is what the first caller asked for, and its status says so. build runs
// once, with a context that no caller can cancel; it sets discard if it succeeds.
func (cs *creations) do(ctx context.Context, name string, req proto.Message, build func(context.Context, *creation) error) (id string, err error) {
	for {
		// What no caller waits for and this one cannot join has no better claim to the name.
		if err := cs.await(ctx, cs.giveWay(func(c *creation) bool { return c.name == name && !proto.Equal(c.req, req) })); err != nil {
			return "", err
		}
		c, mine, err := cs.join(ctx, name, req, build)
		if err != nil {
			return "", err
		}
		defer cs.leave(ctx, c)
		select {
		case <-c.done:
		case <-ctx.Done():
			return "", fmt.Errorf("%s %s: %s: %w", cs.what, name, c.progress(), ctx.Err())
		}
		if !mine && (c.found || errors.Is(c.err, fault.Exists)) {
			// Nothing was created: the object existed, and matched the other caller's request or
			// did not. That says nothing about this caller's request.
			continue
		}
		switch taken, err := cs.take(ctx, c); {
		case err != nil:
			return "", err
		case taken:
			return c.id, nil
		}
		// The object is being undone: begin again when that is done.
		if err := cs.await(ctx, []*creation{c}); err != nil {
			return "", err
		}
	}
}

// must is do, but after an error nothing exists: if ctx ends first and no other caller waits, the
// work is cancelled and undone before must returns.
func (cs *creations) must(ctx context.Context, name string, req proto.Message, build func(context.Context, *creation) error) (id string, err error) {
	id, err = cs.do(ctx, name, req, build)
	if err != nil && ctx.Err() != nil {
		cs.abandon(ctx, name, req)
	}
	return id, err
}

// abandon undoes the creation that must began or joined. It does not wait for ever for work that
// hangs: such work is undone when it ends.
func (cs *creations) abandon(ctx context.Context, name string, req proto.Message) {
	ctx, cancel := undo.Context(ctx)
	defer cancel()
	cs.await(ctx, cs.giveWay(func(c *creation) bool { return c.name == name && proto.Equal(c.req, req) }))
}

// giveWay drops the creations that match and that no caller waits for, and returns them.
func (cs *creations) giveWay(match func(*creation) bool) (dropped []*creation) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.byName {
		if c.waiting == 0 && match(c) {
			cs.drop(c)
			dropped = append(dropped, c)
		}
	}
	return dropped
}

// drop undoes c, or has its cancelled work do so; the caller holds cs.mu.
func (cs *creations) drop(c *creation) {
	if c.dropped {
		return
	}
	c.dropped = true
	c.cancel()
	if c.finished {
		if !cs.work.start(func() { cs.undo(c.ctx, c) }) {
			cs.forget(c, c.id) // the next crispd shows it
		}
	}
}

// await waits until dropped creations are gone.
func (cs *creations) await(ctx context.Context, dropped []*creation) error {
	for _, c := range dropped {
		select {
		case <-c.gone:
		case <-ctx.Done():
			return fmt.Errorf("%s %s: being undone: %w", cs.what, c.name, ctx.Err())
		}
	}
	return nil
}

// leave removes a caller from c.
func (cs *creations) leave(ctx context.Context, c *creation) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.waiting--
	c.hungUp = hungUp(ctx)
	cs.keep(c)
}

// keep keeps c for a while if no caller waits for it; the caller holds cs.mu.
func (cs *creations) keep(c *creation) {
	life := uncollectedLife
	switch {
	case c.waiting > 0 || c.dropped || cs.byName[c.name] != c:
		return
	case c.hungUp:
		life = hungUpLife
	case !c.finished:
		return // its stages have their own limits
	}
	c.stopTimer()
	c.timer = time.AfterFunc(life, func() { cs.giveWay(func(o *creation) bool { return o == c }) })
}

// stopTimer keeps the timer from dropping c; the caller holds creations.mu.
func (c *creation) stopTimer() {
	if c.timer != nil {
		c.timer.Stop()
	}
}

// hungUp reports whether a caller left before its time was up. When its time is up, its own clock
// may be the first to tell: gRPC's client then cancels as well.
func hungUp(ctx context.Context) bool {
	until, limited := ctx.Deadline()
	return errors.Is(ctx.Err(), context.Canceled) && (!limited || time.Until(until) > time.Second)
}

// join returns the creation called name, and whether this call began it because
// there was none. The caller must leave it.
func (cs *creations) join(ctx context.Context, name string, req proto.Message, build func(context.Context, *creation) error) (c *creation, mine bool, err error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c, ok := cs.byName[name]; ok {
		if !proto.Equal(c.req, req) {
			return nil, false, fault.Exists.Errorf("%s name %s is taken by a request with another configuration, %s", cs.what, name, c.progress())
		}
		c.stopTimer()
		c.waiting++
		stage.Follow(ctx, c.stages)
		return c, false, nil
	}
	stopping := fault.Unavailable.Errorf("%s %s: crispd is stopping", cs.what, name)
	if cs.ctx.Err() != nil {
		return nil, false, stopping
	}
	c = &creation{
		name: name, req: req, id: oci.NewID(), began: time.Now(), stage: "begin",
		done: make(chan struct{}), gone: make(chan struct{}), waiting: 1,
	}
	id := c.id // build may replace it
	cs.byName[name] = c
	cs.hidden[id] = struct{}{}
	caller := ctx
	ctx, c.stages = stage.Fork(context.WithoutCancel(ctx))
	stage.Follow(caller, c.stages)
	c.ctx, c.cancel = context.WithCancel(ctx)
	stop := context.AfterFunc(cs.ctx, c.cancel)
	begun := cs.work.start(func() {
		defer c.cancel()
		defer stop()
		cs.run(c, build)
	})
	if !begun {
		stop()
		c.cancel()
		cs.forget(c, id)
		return nil, false, stopping
	}
	return c, true, nil
}

// run does the work of c.
func (cs *creations) run(c *creation, build func(context.Context, *creation) error) {
	hiddenID := c.id // build replaces c.id if it finds the object
	c.err = fault.Protect(func() error { return build(c.ctx, c) })
	c.stages.Stop()

	if cs.ended(c, hiddenID) {
		cs.undo(c.ctx, c)
	}
}

// ended records that the work of c has ended, and reports whether its result must be undone.
func (cs *creations) ended(c *creation, hiddenID string) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	close(c.done)
	switch {
	case c.err != nil || c.found:
		cs.forget(c, hiddenID)
	case c.dropped:
		return true
	default:
		c.finished = true
		if !c.hungUp { // else its time runs already
			cs.keep(c)
		}
	}
	return false
}

// take gives the finished object of c to a caller that is still there.
func (cs *creations) take(ctx context.Context, c *creation) (bool, error) {
	if c.err != nil {
		cs.mu.Lock()
		defer cs.mu.Unlock()
		if c.dropped {
			return false, nil // the error belongs to another caller, who gave up
		}
		return false, c.err
	}
	first, taken, err := cs.takeOnce(ctx, c)
	if first {
		cs.delivered(c.id)
	}
	return taken, err
}

func (cs *creations) takeOnce(ctx context.Context, c *creation) (first, taken bool, err error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return false, false, fmt.Errorf("%s %s: finished too late: %w", cs.what, c.name, ctx.Err())
	case c.dropped:
		return false, false, nil
	case cs.byName[c.name] != c:
		return false, true, nil // another caller of the same creation took it first
	}
	cs.forget(c, c.id)
	return true, true, nil
}

// undo discards the finished object of c, which was dropped.
func (cs *creations) undo(ctx context.Context, c *creation) {
	ctx, cancel := undo.Context(ctx)
	defer cancel()
	if err := fault.Protect(func() error { return c.discard(ctx) }); err != nil {
		// The object is listed from now on, and the kubelet removes objects it does not know.
		cs.log.WarnContext(ctx, "uncollected object not undone", cs.what, c.id, "err", err)
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.forget(c, c.id)
}

// forget frees the name and makes the object, if there is one, visible; the
// caller holds cs.mu.
func (cs *creations) forget(c *creation, id string) {
	delete(cs.byName, c.name)
	delete(cs.hidden, id)
	close(c.gone)
}

// isHidden reports whether the object is still being made, or is finished and no caller
// has received it yet.
func (cs *creations) isHidden(id string) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	_, ok := cs.hidden[id]
	return ok
}

// close stops the timers. To the next crispd uncollected objects are ordinary ones.
func (cs *creations) close() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.byName {
		c.stopTimer()
	}
}

// enter begins the named stage of the creation, and returns the context for it.
func (c *creation) enter(ctx context.Context, name string) (context.Context, context.CancelFunc) {
	stage.Next(ctx, name)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stage = name
	life, own := stageLives[name]
	switch {
	case !own:
		life = stageLife
	case life == 0:
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, life)
}

// progress returns how far a creation has come, for the errors of calls that wait for it.
func (c *creation) progress() string {
	select {
	case <-c.done:
		return "finished"
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("in stage %q for %v", c.stage, time.Since(c.began).Round(time.Millisecond))
}
