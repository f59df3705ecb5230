package server

import (
	"sync/atomic"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/notify"
	"github.com/crisp-cri/crisp/oci"
)

// eventQueue is how many events a subscriber may lag behind: a node with 500 pods that all end
// at once sends a thousand or more.
const eventQueue = 4096

// Events carries the runtime's events to the subscribers of GetContainerEvents. It is created
// before the runtime, which sends to it, and before the server, which answers with the help of
// the runtime.
type Events struct {
	hub    notify.Hub[*cri.ContainerEventResponse]
	server atomic.Pointer[Server]
}

// NewEvents returns an Events that drops every event until there is a server.
func NewEvents() *Events { return new(Events) }

func (e *Events) attach(s *Server) { e.server.Store(s) }
func (e *Events) detach()          { e.server.Store(nil) }

// eventType translates the events that CRI knows. CRI has none for an OOM kill, which the exit
// status shows.
var eventType = map[oci.EventKind]cri.ContainerEventType{
	oci.SandboxCreated:   cri.ContainerEventType_CONTAINER_CREATED_EVENT,
	oci.SandboxStopped:   cri.ContainerEventType_CONTAINER_STOPPED_EVENT,
	oci.SandboxRemoved:   cri.ContainerEventType_CONTAINER_DELETED_EVENT,
	oci.ContainerCreated: cri.ContainerEventType_CONTAINER_CREATED_EVENT,
	oci.ContainerStarted: cri.ContainerEventType_CONTAINER_STARTED_EVENT,
	oci.ContainerExited:  cri.ContainerEventType_CONTAINER_STOPPED_EVENT,
	oci.ContainerRemoved: cri.ContainerEventType_CONTAINER_DELETED_EVENT,
}

// Publish is oci.Options.OnEvent. Hidden objects cause no events: a client learns of its object
// from the response first.
func (e *Events) Publish(ev oci.Event) {
	s := e.server.Load()
	if s == nil {
		return
	}
	if ev.Kind == oci.ContainerOOM {
		n, _ := s.ooms.LoadOrStore(ev.Container.ID(), new(atomic.Uint64))
		n.(*atomic.Uint64).Add(1)
		s.o.Telemetry.OOM()
	}
	if ev.Sandbox != nil {
		s.cadvisor.Changed(ev.Sandbox.ID())
	}
	if ev.Kind == oci.SandboxBroken { // no caller can use it
		s.sandboxes.giveWay(func(c *creation) bool { return c.finished && c.id == ev.Sandbox.ID() })
	}
	typ, known := eventType[ev.Kind]
	if !known {
		return
	}
	switch {
	case ev.Container != nil:
		if !s.isHidden(ev.Container) {
			s.publish(typ, ev.Container.ID(), ev.Sandbox, ev.At)
		}
		if ev.Kind == oci.ContainerExited {
			s.exited(ev.Container)
		}
		if ev.Kind == oci.ContainerRemoved {
			s.exits.forget(ev.Container.ID())
			s.index.containers.Delete(ev.Container.ID())
			s.cpu.forget(ev.Container.ID())
			s.ooms.Delete(ev.Container.ID())
			s.startups.outputs.Delete(ev.Container.ID())
		}
	case ev.Sandbox != nil:
		if !s.sandboxes.isHidden(ev.Sandbox.ID()) {
			s.publish(typ, ev.Sandbox.ID(), ev.Sandbox, ev.At)
		}
		if ev.Kind == oci.SandboxRemoved {
			s.forgetStartup(ev.Sandbox)
			s.index.sandboxes.Delete(ev.Sandbox.ID())
			s.cpu.forget(ev.Sandbox.ID())
		}
	}
}

// publish sends one event with the current statuses of the whole pod, which are at least as new
// as the event.
func (s *Server) publish(typ cri.ContainerEventType, id string, sb *oci.Sandbox, at time.Time) {
	if !s.events.hub.HasSubscribers() {
		return
	}
	ev := &cri.ContainerEventResponse{ContainerId: id, ContainerEventType: typ, CreatedAt: at.UnixNano()}
	if sb != nil {
		ev.PodSandboxStatus = s.sandboxStatus(sb)
		ev.ContainersStatuses = s.containerStatuses(sb)
	}
	s.events.hub.Publish(ev)
}

// sandboxDelivered publishes that a sandbox is no longer hidden. Its creation
// and its start are one event. A restored sandbox comes with containers.
func (s *Server) sandboxDelivered(id string) {
	sb, err := s.runtime.Sandbox(id)
	if err != nil {
		return
	}
	s.publish(cri.ContainerEventType_CONTAINER_CREATED_EVENT, id, sb, time.Now())
	s.publish(cri.ContainerEventType_CONTAINER_STARTED_EVENT, id, sb, time.Now())
	for _, c := range sb.Containers() {
		if !s.isHidden(c) {
			s.publish(cri.ContainerEventType_CONTAINER_CREATED_EVENT, c.ID(), sb, time.Now())
		}
	}
}

// containerDelivered publishes that a container is no longer hidden, unless its
// sandbox still is: then it is published with the sandbox.
func (s *Server) containerDelivered(id string) {
	c, err := s.runtime.Container(id)
	if err != nil || s.isHidden(c) {
		return
	}
	if sb, err := s.runtime.Sandbox(c.SandboxID()); err == nil {
		s.publish(cri.ContainerEventType_CONTAINER_CREATED_EVENT, id, sb, time.Now())
	}
}
