package runtime

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/unixsock"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/executor/shim"
	"github.com/crisp-cri/crisp/oci/wire"
)

// Shims publish events to a socket of ours. The end of a container is learnt by Wait; an event that
// tells it has the shim's State asked for, in case Wait hangs. An OOM kill outside of the host's
// cgroups is only told by an event.

// A listener receives events of shims, once there is a shim.
type listener struct {
	socket *unixsock.Listener // guarded by tasks.mu
	known  map[string]*Task   // those that are waited for, by container; guarded by tasks.mu
	oom    func(id string, kills int64)
}

// publishes returns the socket to which t's shim publishes, "" if it must not know any: gVisor's ends,
// with all containers, when an event cannot be delivered, which would be while no executor runs.
func (t *Task) publishes() string {
	if strings.Contains(filepath.Base(t.Path), "runsc") {
		return ""
	}
	return t.all.events
}

// expect has the events of a container be handled whose process is known.
func (a *tasks) expect(t *Task) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known[t.id] = t
}

// receive begins to receive events, if t's shim publishes any.
func (a *tasks) receive(t *Task) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.socket != nil || t.publishes() == "" {
		return
	}
	l, err := unixsock.Bind(a.events, unixsock.Options{Mode: 0o600, Dir: 0o711})
	if err != nil {
		a.log.Warn("events of shims cannot be received", "err", err)
		return
	}
	a.socket = l
	go shim.Serve(context.Background(), l, a.handle)
}

func (a *tasks) forget(t *Task) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known[t.id] == t {
		delete(a.known, t.id)
	}
}

// handle takes an event. Only a container's own shim can tell of an OOM kill.
func (a *tasks) handle(e shim.Event) {
	a.mu.Lock()
	t := a.known[e.ContainerID]
	a.mu.Unlock()
	if t == nil || e.Namespace != wire.ShimNamespace(a.root) {
		return
	}
	switch {
	case e.Exit != nil && e.ExecID == "":
		if t.looking.CompareAndSwap(false, true) {
			go t.look()
		}
	case e.Exit == nil && len(t.Cgroups) == 0 && e.Publisher == t.ShimPID: // else its cgroup has the counter
		a.oom(t.id, t.ooms.Add(1))
	}
}

// look asks for the state of a container that is said to have ended, if Wait does not tell.
func (t *Task) look() {
	defer t.looking.Store(false)
	select {
	case <-t.process.Ended():
		return
	case <-time.After(time.Second):
	}
	if state, err := t.state(""); err == nil && state.Status == shim.Stopped {
		t.ended(t.process, state.Exit)
	}
}

// ended says that a process has ended as the shim says.
func (t *Task) ended(p *proc.Process, exit *shim.Exit) { p.End(int32(exit.Status&0xff), exit.At, nil) }

// LostSome reports whether the shim has told of an OOM kill in the container.
func (t *Task) LostSome() bool { return t.ooms.Load() > 0 }

// Listeners are the sockets that must be there.
func (r *Runtimes) Listeners() []*unixsock.Listener {
	r.tasks.mu.Lock()
	defer r.tasks.mu.Unlock()
	if r.tasks.socket == nil {
		return nil
	}
	return []*unixsock.Listener{r.tasks.socket}
}

// Close removes the sockets.
func (r *Runtimes) Close() {
	for _, l := range r.Listeners() {
		l.Close()
	}
}
