package executor

import (
	"context"
	"sync"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A table has the containers of an executor. That the executor ends is decided under its lock (exitIf).
type table struct {
	quit chan struct{} // closed, with mu held, when the executor has to end

	mu         sync.Mutex
	containers map[string]*container // guarded by mu
}

func newTable() *table {
	return &table{quit: make(chan struct{}), containers: make(map[string]*container)}
}

// get returns a container in any phase; nil = unknown.
func (t *table) get(id string) *container {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.containers[id]
}

func (t *table) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.containers)
}

// reserve adds a new container to the table; the error is errExiting if the executor is about to
// exit. For a container to be started, from is the client that requested it, and giveUp cancels
// the start.
func (t *table) reserve(s settings, from *wire.Conn, giveUp context.CancelCauseFunc) (*container, error) {
	if s.ID == "" {
		return nil, fault.Invalid.Errorf("container without an ID")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.exiting() {
		return nil, errExiting
	}
	if from != nil && from.Passed() { // the next client already assumes that it never ran
		return nil, fault.WrongState.Errorf("container %s: %w", s.ID, wire.ErrGone)
	}
	if _, ok := t.containers[s.ID]; ok {
		return nil, fault.Exists.Errorf("container %s is already there", s.ID)
	}
	c := &container{settings: s, gone: make(chan struct{}), from: from, giveUp: giveUp}
	t.containers[s.ID] = c
	return c, nil
}

// edit calls f with the lock held.
func (t *table) edit(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

// release undoes reserve.
func (t *table) release(c *container) { t.edit(func() { delete(t.containers, c.ID) }) }

func (t *table) runs(id string) (*container, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, ok := t.containers[id]
	if !ok {
		return nil, fault.NotFound.Errorf("no container %q", id)
	}
	switch c.phase {
	case running:
		return c, nil
	case starting:
		return nil, fault.WrongState.Errorf("container %s is starting", id)
	}
	return nil, fault.WrongState.Errorf("container %s is not running", id)
}

// begin moves a container to running. It reports whether it was killed meanwhile.
func (t *table) begin(c *container) (killed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.phase = running
	return c.toKill
}

// reaped records how a container has ended; that is reported only when the phase changes.
func (t *table) reaped(c *container, e *wire.Exit) { t.edit(func() { c.exit = e }) }

// beginDelete moves a container to deleting; it returns nil if the ID is unknown.
func (t *table) beginDelete(id string) (*container, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, ok := t.containers[id]
	if !ok {
		return nil, nil
	}
	if c.phase != ended {
		return nil, fault.WrongState.Errorf("container %s has not ended", id)
	}
	c.phase = deleting
	return c, nil
}

// list serves MethodList: the containers that are running or have ended.
func (t *table) list() []wire.Info {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]wire.Info, 0, len(t.containers))
	for _, c := range t.containers {
		if c.phase == starting {
			continue
		}
		info := wire.Info{ID: c.ID, RunReply: c.reply()}
		if c.phase >= ended {
			info.Exit = c.exit
		}
		all = append(all, info)
	}
	return all
}

// ending returns the exit of a container that has been reaped.
func (t *table) ending(c *container) *wire.Exit {
	t.mu.Lock()
	defer t.mu.Unlock()
	return c.exit
}

// endsUnder returns why an exec in c, or an update of it, has failed if c ended meanwhile.
// Processes being started in it are killed before the exit of c is known: only then can its init
// exit.
func (t *table) endsUnder(c *container) error {
	if _, err := t.runs(c.ID); err != nil {
		return err
	}
	if c.proc.Ending() {
		return fault.WrongState.Errorf("container %s is not running: it ended meanwhile", c.ID)
	}
	return nil
}

func (t *table) startingOne() (id string, found bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, c := range t.containers {
		if c.phase == starting && !c.stuck {
			return id, true
		}
	}
	return "", false
}

// cancelAbandoned cancels the starts whose clients have disconnected, and reports whether there are any:
// one that hangs must not keep a node from its new executor.
func (t *table) cancelAbandoned() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := false
	for _, c := range t.containers {
		if c.phase != starting || c.stuck || c.giveUp == nil {
			continue
		}
		select {
		case <-c.from.Done():
			c.giveUp(errAbandoned)
			found = true
		default:
		}
	}
	return found
}
