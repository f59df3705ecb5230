package server

import (
	"maps"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/spec"
)

// A Handler is what a RuntimeClass chooses by its name.
type Handler struct {
	Engine   string    // path of the OCI runtime that runs the containers; "" = libcontainer
	SpecHost spec.Host // what is translated for it

	// Annotations are patterns of path.Match for the keys of annotations, of pod and
	// container, that the OCI runtime gets.
	Annotations []string

	NoUserNS error   // why its pods cannot have user namespaces; nil = they can
	Network  Network // of its pods; nil = that of all others
}

// defaultHandler is the name by which a RuntimeClass can choose what a pod without one
// gets.
const defaultHandler = "crisp"

// allHandlers adds the default one, under both of its names, to the configured ones.
func allHandlers(o Options) map[string]Handler {
	all := maps.Clone(o.Handlers)
	if all == nil {
		all = map[string]Handler{}
	}
	all[""] = Handler{SpecHost: o.SpecHost, NoUserNS: o.NoUserNS}
	all[defaultHandler] = all[""]
	for name, h := range all {
		if h.Network == nil {
			h.Network = o.Network
			all[name] = h
		}
	}
	return all
}

// handlerNames are the handlers that there are, sorted: the kubelet publishes them in
// this order, and a change is an update of its node.
func (s *Server) handlerNames() []string { return slices.Sorted(maps.Keys(s.live.Load().Handlers)) }

// handler finds a handler. CRI: "If the runtime handler is unknown, this request
// should be rejected."
func (s *Server) handler(name string) (Handler, error) {
	if h, ok := s.live.Load().Handlers[name]; ok {
		return h, nil
	}
	return Handler{}, fault.Invalid.Errorf("runtime handler %q is not known, only %s", name, strings.Join(s.handlerNames()[1:], ", "))
}

// handlerOf is the handler of a sandbox. One that was configured when the sandbox was
// made, and is no more, runs no further containers.
func (s *Server) handlerOf(sb *oci.Sandbox) (Handler, error) {
	return s.handler(s.index.sandbox(sb).handler)
}

// networkOf is the network of a handler's pods. What is attached is detached by
// what was written down when it was attached, so that any network can do it for a
// handler that is no more.
func (s *Server) networkOf(handler string) Network {
	if h, ok := s.live.Load().Handlers[handler]; ok {
		return h.Network
	}
	return s.network
}

// networks are all there are, that of the default handler first.
func (s *Server) networks() []Network {
	list := []Network{s.network}
	for _, h := range s.live.Load().Handlers {
		if !slices.Contains(list, h.Network) {
			list = append(list, h.Network)
		}
	}
	return list
}
