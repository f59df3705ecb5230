package oci

import (
	"cmp"
	"context"
	"time"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/oci/wire"
)

// handle takes one event from the executor.
func (r *Runtime) handle(e wire.Event) {
	if sb, ok := r.sandboxes.exact(e.ID); ok {
		if e.Kind == wire.EventExit {
			sb.podInitEnded(e.Exit)
		}
		return
	}
	c, ok := r.containers.exact(e.ID)
	if !ok {
		return // removed; its own exit has reported the kill
	}
	switch {
	case e.Kind == wire.EventOOM:
		c.killed(e.Kills)
		c.emit(ContainerOOM)
	case e.Kind == wire.EventExit && e.Exit != nil:
		r.work.Go(func() { c.exit(r.closing, *e.Exit) })
	}
}

// killed records how many processes the container has lost to the OOM killer, so that the next
// executor reports only later kills.
func (c *Container) killed(kills int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := *c.status.Load()
	if st.State >= Exited || st.OOMKills >= kills {
		return
	}
	st.OOMKills = kills
	if err := c.save(st); err != nil { // at worst it is reported again
		c.rt.log.Warn("status could not be saved", "container", c.id, "err", err)
	}
	c.status.Store(&st)
}

// exit takes the container to Exited, once: an event, a list and exit.json may all report the
// exit. It waits for the start to be settled, so that a container that ended at once has been
// seen Running. The executor reports an exit when no process of the container is left and its
// log is complete.
func (c *Container) exit(ctx context.Context, e wire.Exit) {
	select {
	case <-c.settled:
	case <-ctx.Done():
		return
	}
	if c.status.Load().State >= Exited {
		return
	}
	e.Reason = cmp.Or(e.Reason, wire.ReasonOf(e.Code, e.OOMKilled))
	if err := c.end(e, false); err != nil && c.status.Load().State < Exited {
		c.rt.log.Error("exit could not be applied", "container", c.id, "err", err)
	}
}

// end moves the container to Exited. The executor has written exit.json, unless write is set:
// then only we know of the exit.
func (c *Container) end(exit wire.Exit, write bool) error {
	if write {
		if err := atomicfile.WriteJSON(c.exitPath(), exit); err != nil {
			// It has ended all the same; a reboot will forget that.
			c.rt.log.Error("exit could not be recorded", "container", c.id, "err", err)
		}
	}
	if err := c.move(exited, func(st *containerStatus) { st.apply(exit) }); err != nil {
		return err
	}
	c.release()
	if c.rt.o.Store != nil {
		c.rt.work.Go(c.unstore)
	}
	c.emit(ContainerExited)
	close(c.notified)
	return nil
}

// apply writes an exit into a status.
func (st *containerStatus) apply(exit wire.Exit) {
	st.Pid, st.ExitCode, st.FinishedAt = 0, exit.Code, exit.At
	st.Reason, st.Message, st.OOMKilled = exit.Reason, exit.Message, exit.OOMKilled
	if st.StartedAt.IsZero() {
		st.StartedAt = exit.At // its program was never executed: when that was tried
	}
	if st.FinishedAt.Before(st.StartedAt) {
		st.FinishedAt = st.StartedAt // the clock was set back
	}
}

// lost ends a container whose exit was not observed.
func (c *Container) lost(reason, message string) error {
	return c.end(wire.Exit{ID: c.id, Code: 255, At: time.Now(), Reason: reason, Message: message}, true)
}

// An EventKind is the kind of an event.
type EventKind uint8

const (
	SandboxCreated   EventKind = iota // became Ready
	SandboxBroken                     // stopped being Ready by itself: its init ended
	SandboxStopped                    // became NotReady
	SandboxRemoved                    // can no longer be found
	ContainerCreated                  // can be found
	ContainerStarted                  // its program runs
	ContainerExited                   // its exit is on disk
	ContainerRemoved                  // can no longer be found
	ContainerOOM                      // the OOM killer killed a process of it
)

// An Event is one thing that happened to one object. Events of one object come in the order in
// which they happened. The object stays readable after its removal.
type Event struct {
	Kind      EventKind
	Sandbox   *Sandbox   // nil only for a container whose sandbox's record was lost
	Container *Container // nil for events of sandboxes
	At        time.Time
}

func (r *Runtime) emit(e Event) {
	if r.o.OnEvent != nil {
		r.o.OnEvent(e)
	}
}
