package server

import (
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/telemetry"
)

// state returns the number of objects in each state, for the metrics. It includes states without
// objects, because a series that comes and goes cannot be summed.
func (s *Server) state() telemetry.State {
	st := telemetry.State{
		Containers: map[string]int{}, Sandboxes: map[string]int{},
		Images: len(s.images.List()), Streams: s.streaming.Sessions(),
		ExecutorRestarts: s.runtime.ExecutorRestarts(), EventsDropped: s.events.hub.Dropped(), Pulls: s.images.Pulls(),
	}
	for state := oci.Created; state <= oci.Removing; state++ {
		st.Containers[state.String()] = 0
	}
	for state := oci.SandboxReady; state <= oci.SandboxRemoving; state++ {
		st.Sandboxes[state.String()] = 0
	}
	for _, c := range s.runtime.Containers() {
		st.Containers[c.Status().State.String()]++
	}
	for _, sb := range s.runtime.Sandboxes() {
		st.Sandboxes[sb.State().String()]++
	}
	return st
}
