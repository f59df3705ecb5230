package play

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/model"
)

// A Node is what a script is played on. Its runtime runs when Play gets it.
type Node interface {
	Runtime() cri.RuntimeServiceClient
	Images() cri.ImageServiceClient

	// Ref returns the reference of a script's image; that of "" is the image with /testbin, which
	// the node has.
	Ref(image string) string

	// Arm makes the runtime die at its n-th step from now, before that takes effect or right after;
	// false: the node cannot do that. Dead reports whether it has died.
	Arm(n int, after bool) bool
	Dead() bool
	// Kill kills the runtime, KillExecutor the parent of containers, and Stop stops the runtime in
	// order. After Kill and Stop no call is answered, and Start starts the runtime again.
	Kill()
	KillExecutor()
	Stop() error
	Start() error
	// FailAt makes the n-th step from now fail; Mend ends that.
	FailAt(n int)
	Mend()
	// Settle waits until nothing changes any more. unsettled: clients of some calls have left.
	Settle(unsettled bool)
	// Left lists the objects that should not exist any more.
	Left() []string
}

// A Blocker is a Node that can block a call.
type Blocker interface {
	// Block blocks what comes to the n-th step from now, before that takes effect, until Release; 0 =
	// nothing.
	Block(n int)
	// Blocked waits until something is blocked, or done is closed.
	Blocked(done <-chan struct{})
	Release()
}

// overlapTime is how long a call may run beside one that is blocked: after that it waits for it.
const overlapTime = 400 * time.Millisecond

// patience bounds each call, for a runtime that hangs; patienceOfRecord is that of Record.
const (
	patience         = 10 * time.Minute
	patienceOfRecord = time.Minute
)

// nobody is an ID without an object.
const nobody = "feedfeedfeedfeedfeedfeedfeedfeedfeedfeedfeedfeedfeedfeedfeedfeed"

// A player plays one script.
type player struct {
	node     Node
	check    func(model.History) error
	patience time.Duration // bound of calls without one of their own

	mu      sync.Mutex
	history model.History
	calls   int
	alias   map[string]string   // ID → name in the history
	known   map[string][]string // pod, pod/container → its IDs, as clients have learnt of them
	names   map[string]string   // ref → image
	up      chan struct{}       // closed while the runtime answers
	crashes int
	left    bool         // a client has left in this round
	again   []model.Call // calls of this round with unknown effects

	listens sync.WaitGroup
}

// Play plays s on the node, removes all objects, and returns what clients have observed. The error
// says what no runtime may do, or what is left.
func Play(ctx context.Context, node Node, s Script, rules model.Rules) (model.History, error) {
	return play(ctx, node, s, rules.Check, patience)
}

// Record is Play without the check of what clients have observed.
func Record(ctx context.Context, node Node, s Script) (model.History, error) {
	return play(ctx, node, s, func(model.History) error { return nil }, patienceOfRecord)
}

func play(ctx context.Context, node Node, s Script, check func(model.History) error, patience time.Duration) (model.History, error) {
	p := &player{
		node: node, check: check, patience: patience, alias: map[string]string{nobody: "nobody"},
		known: make(map[string][]string), names: make(map[string]string), up: make(chan struct{}),
	}
	close(p.up)
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		p.listens.Wait()
	}()
	if err := p.listen(ctx); err != nil {
		return nil, err
	}
	for _, name := range images {
		p.names[node.Ref(name)] = name
	}
	for i, r := range s.Rounds {
		if err := p.round(ctx, r); err != nil {
			return p.history, fmt.Errorf("round %d: %w", i+1, err)
		}
	}
	if err := p.removeAll(ctx, s); err != nil {
		return p.history, fmt.Errorf("at the end: %w", err)
	}
	return p.history, nil
}

// round plays one round and then reads everything.
func (p *player) round(ctx context.Context, r Round) error {
	p.left, p.again = false, nil
	is := func(acts ...string) bool {
		return slices.ContainsFunc(r, func(s Step) bool { return oneOf(s.Act, acts...) })
	}
	run := p.together
	if is(Block) {
		run = p.overlap
	}
	if err := run(ctx, r); err != nil {
		return err
	}
	p.node.Mend()
	p.node.Settle(p.left)
	p.note(model.Quiet)
	if is(Executor, Both, Fail) {
		p.note(model.Mended)
	}
	p.look(ctx)
	// Calls with unknown effects are repeated, and must have an answer now.
	again := p.again
	for _, c := range again {
		c.ID, c.Sandbox, c.Patience = "", "", 0
		p.call(ctx, "again", c, false)
	}
	if len(again) > 0 {
		p.node.Settle(false)
		p.note(model.Quiet)
		p.look(ctx)
	}
	return p.check(p.history)
}

// together plays the steps of all clients at once.
func (p *player) together(ctx context.Context, r Round) error {
	over := make(chan struct{})
	var work, nemesis sync.WaitGroup
	var failed error
	for _, client := range clients(r) {
		steps := stepsOf(r, client)
		if client != Nemesis {
			work.Go(func() { p.client(ctx, steps) })
			continue
		}
		nemesis.Go(func() {
			for _, s := range steps {
				if failed = p.befall(ctx, s, over); failed != nil {
					return
				}
			}
		})
	}
	work.Wait()
	close(over)
	nemesis.Wait()
	return failed
}

// overlap plays a round with a blocked call.
func (p *player) overlap(ctx context.Context, r Round) error {
	node, ok := p.node.(Blocker)
	if !ok {
		return errors.New("the node cannot block a call")
	}
	var work sync.WaitGroup
	first := true
	for _, client := range clients(r) {
		if client == Nemesis {
			continue
		}
		done := make(chan struct{})
		if first {
			i := slices.IndexFunc(r, func(s Step) bool { return s.Act == Block })
			node.Block(r[i].Step)
		}
		work.Go(func() {
			defer close(done)
			p.client(ctx, stepsOf(r, client))
		})
		if first {
			node.Blocked(done)
			first = false
			continue
		}
		select {
		case <-done:
		case <-time.After(overlapTime):
		}
	}
	over := make(chan struct{})
	close(over)
	var err error
	for _, s := range stepsOf(r, Nemesis) {
		if s.Act != Block && err == nil {
			err = p.befall(ctx, s, over)
		}
	}
	node.Release()
	work.Wait()
	return err
}

func stepsOf(r Round, client string) []Step {
	return slices.DeleteFunc(slices.Clone(r), func(s Step) bool { return s.Client != client })
}

func oneOf[T comparable](v T, of ...T) bool { return slices.Contains(of, v) }

func (p *player) client(ctx context.Context, steps []Step) {
	for _, s := range steps {
		time.Sleep(s.Delay)
		p.call(ctx, s.Client, s.Call, s.Old)
	}
}

// befall does a step of the Nemesis. A death at a later step than the last of the round comes at
// its end.
func (p *player) befall(ctx context.Context, s Step, over chan struct{}) error {
	select {
	case <-time.After(s.Delay):
	case <-over:
	}
	switch s.Act {
	case Fail:
		p.note(model.Faults)
		p.node.FailAt(s.Step)
		return nil
	case Executor:
		p.note(model.ExecutorGone)
		p.mu.Lock()
		p.left = true // the calls under way are repeated with the next runtime
		p.mu.Unlock()
		p.node.KillExecutor()
		return nil
	}
	if s.Act != Restart && p.node.Arm(s.Step, s.After) {
		for waits := true; waits && !p.node.Dead(); {
			select {
			case <-time.After(time.Millisecond):
			case <-over:
				waits = false
			}
		}
	}
	p.mu.Lock()
	p.up = make(chan struct{})
	p.crashes++
	p.left = true
	p.mu.Unlock()
	p.note(model.Crash)
	if s.Act == Both {
		p.note(model.ExecutorGone)
	}
	var err error
	if s.Act == Restart {
		err = p.node.Stop()
	} else {
		p.node.Kill()
	}
	if s.Act == Both {
		p.node.KillExecutor()
	}
	if err = errors.Join(err, p.node.Start()); err != nil {
		return fmt.Errorf("after %s: %w", s.Act, err)
	}
	if err := p.listen(ctx); err != nil {
		return fmt.Errorf("after %s: %w", s.Act, err)
	}
	p.note(model.Up)
	p.mu.Lock()
	close(p.up)
	p.mu.Unlock()
	return nil
}

// listen subscribes to events, and records them until the runtime ends.
func (p *player) listen(ctx context.Context) error {
	stream, err := p.node.Runtime().GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		return fmt.Errorf("subscribe to events: %w", err)
	}
	p.note(model.Listening)
	states := map[cri.ContainerEventType]model.State{
		cri.ContainerEventType_CONTAINER_CREATED_EVENT: model.Created, cri.ContainerEventType_CONTAINER_STARTED_EVENT: model.Running,
		cri.ContainerEventType_CONTAINER_STOPPED_EVENT: model.Exited, cri.ContainerEventType_CONTAINER_DELETED_EVENT: model.Gone,
	}
	p.mu.Lock()
	lives := p.crashes
	p.mu.Unlock()
	p.listens.Go(func() {
		for {
			ev, err := stream.Recv()
			if err != nil {
				return
			}
			p.mu.Lock()
			if p.crashes == lives {
				answer := model.Answer{Code: model.OK, ID: p.aliasOf(ev.ContainerId), State: states[ev.ContainerEventType]}
				p.history = append(p.history, model.Event{Kind: model.Reported, Answer: answer})
			}
			p.mu.Unlock()
		}
	})
	return nil
}

// note records what happened to the node.
func (p *player) note(kind model.Kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.history = append(p.history, model.Event{Kind: kind})
}

// look reads everything, as one client.
func (p *player) look(ctx context.Context) {
	pods := p.call(ctx, "look", model.Call{Verb: model.ListPods}, false)
	for _, it := range pods.Items {
		p.call(ctx, "look", model.Call{Verb: model.PodStatus, Pod: it.Pod}, false)
	}
	containers := p.call(ctx, "look", model.Call{Verb: model.List}, false)
	for _, it := range containers.Items {
		p.call(ctx, "look", model.Call{Verb: model.Status, Pod: it.Pod, Container: it.Container}, false)
	}
	p.call(ctx, "look", model.Call{Verb: model.ListImages}, false)
}

// removeAll removes all objects, as the kubelet would, and checks that they are gone. What could
// not be undone, because the undo failed, too, the runtime may keep until its next start.
func (p *player) removeAll(ctx context.Context, s Script) error {
	for _, it := range p.call(ctx, "end", model.Call{Verb: model.ListPods}, false).Items {
		p.call(ctx, "end", model.Call{Verb: model.StopPod, Pod: it.Pod}, false)
		p.call(ctx, "end", model.Call{Verb: model.RemovePod, Pod: it.Pod}, false)
	}
	for _, name := range images {
		p.call(ctx, "end", model.Call{Verb: model.RemoveImage, Image: name}, false)
	}
	p.node.Settle(false)
	p.note(model.Quiet)
	p.look(ctx)
	if err := p.check(p.history); err != nil {
		return err
	}
	if failed := func(st Step) bool { return st.Act == Fail }; slices.ContainsFunc(slices.Concat(s.Rounds...), failed) {
		if err := p.befall(ctx, Step{Act: Restart}, nil); err != nil {
			return err
		}
		p.node.Settle(false)
	}
	if left := p.node.Left(); len(left) > 0 {
		return fmt.Errorf("everything is removed, and there is left:\n  %s", strings.Join(left, "\n  "))
	}
	return nil
}

// call makes a call, once the runtime answers, and records its answer.
func (p *player) call(ctx context.Context, client string, c model.Call, old bool) model.Answer {
	p.mu.Lock()
	up := p.up
	p.mu.Unlock()
	<-up
	p.mu.Lock()
	id, sandbox := p.resolve(c, old)
	c.ID, c.Sandbox = p.aliasOf(id), p.aliasOf(sandbox)
	p.calls++
	n, crashes := p.calls, p.crashes
	p.history = append(p.history, model.Event{Kind: model.Begin, N: n, Client: client, Call: c})
	p.mu.Unlock()

	life := p.patience
	if c.Patience > 0 {
		life = time.Duration(c.Patience) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, life)
	defer cancel()
	a, err := p.ask(ctx, c, id, sandbox)
	a.Code = codeOf(err)

	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		a.Text = status.Code(err).String() + ": " + status.Convert(err).Message()
	}
	switch {
	case a.Code == model.Trouble && c.Patience > 0 && ctx.Err() != nil:
		a.Code = model.Left
		p.left = true
	case a.Code == model.Trouble && p.crashes != crashes:
		a.Code = model.Lost
	}
	if a.Code.Unsettled() && !oneOf(c.Verb, model.PodStatus, model.ListPods, model.Status, model.List, model.ImageStatus, model.ListImages) {
		p.again = append(p.again, c)
	}
	p.learn(c, &a)
	p.history = append(p.history, model.Event{Kind: model.End, N: n, Client: client, Answer: a})
	return a
}

// resolve returns the ID of the call's object, and that of the sandbox that it creates in.
func (p *player) resolve(c model.Call, old bool) (id, sandbox string) {
	best := func(name string) string {
		ids := p.known[name]
		if old && len(ids) > 1 {
			return ids[len(ids)-2]
		}
		if len(ids) > 0 {
			return ids[len(ids)-1]
		}
		return nobody
	}
	switch c.Verb {
	case model.RunPod, model.ListPods, model.List, model.Pull, model.RemoveImage, model.ImageStatus, model.ListImages:
	case model.Create:
		sandbox = best(c.Pod)
	case model.StopPod, model.RemovePod, model.PodStatus, model.UpdatePod:
		id = best(c.Pod)
	default:
		id = best(c.Pod + "/" + c.Container)
	}
	return id, sandbox
}

func (p *player) aliasOf(id string) string {
	if id == "" {
		return ""
	}
	a, ok := p.alias[id]
	if !ok {
		a = fmt.Sprint(len(p.alias)) // the ID nobody gets an alias too
		p.alias[id] = a
	}
	return a
}

// learn records the IDs of an answer, and gives them aliases.
func (p *player) learn(c model.Call, a *model.Answer) {
	note := func(name, id string) {
		if ids := p.known[name]; !slices.Contains(ids, id) {
			p.known[name] = append(ids, id)
		}
	}
	switch {
	case a.ID == "":
	case c.Verb == model.RunPod:
		note(c.Pod, a.ID)
	case c.Verb == model.Create:
		note(c.Pod+"/"+c.Container, a.ID)
	}
	a.ID = p.aliasOf(a.ID)
	for i := range a.Items {
		it := &a.Items[i]
		switch {
		case it.Container != "":
			note(it.Pod+"/"+it.Container, it.ID)
		case it.Pod != "":
			note(it.Pod, it.ID)
		}
		it.ID, it.Sandbox = p.aliasOf(it.ID), p.aliasOf(it.Sandbox)
	}
}

// codeOf returns the model's code for a status code.
func codeOf(err error) model.Code {
	switch status.Code(err) {
	case codes.OK:
		return model.OK
	case codes.NotFound:
		return model.NotFound
	case codes.AlreadyExists:
		return model.Exists
	case codes.FailedPrecondition:
		return model.BadState
	case codes.InvalidArgument:
		return model.Invalid
	}
	return model.Trouble
}
