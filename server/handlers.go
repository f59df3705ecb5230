package server

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/spec"
)

// A Handler is a runtime handler, which RuntimeClasses name.
type Handler struct {
	Engine   string       // path of the OCI runtime that runs the containers; "" = libcontainer
	Shim     *oci.Shim    // the containerd shim that runs them instead; nil = none
	Features oci.Features // what the program supports
	SpecHost spec.Host    // the host for which specs are built

	// Annotations are patterns (see path.Match) for keys of pod and container
	// annotations; the OCI runtime or the shim gets those that match.
	Annotations []string

	Overhead Overhead // of each of its sandboxes, for clients that ask

	NoUserNS error   // why its pods cannot have user namespaces; nil = the default handler's reason, if any
	Network  Network // network of its pods; nil = the default handler's
}

// defaultHandler is the name by which a RuntimeClass can choose the handler that pods
// without a RuntimeClass get.
const defaultHandler = "crisp"

// allHandlers returns the configured handlers and the default one, under both of its
// names.
func allHandlers(o Options) map[string]Handler {
	all := map[string]Handler{}
	maps.Copy(all, o.Handlers)
	all[""] = Handler{SpecHost: o.SpecHost}
	all[defaultHandler] = all[""]
	for name, h := range all {
		h.NoUserNS = cmp.Or(h.NoUserNS, o.NoUserNS)
		if h.Network == nil {
			h.Network = o.Network
		}
		all[name] = h
	}
	return all
}

// check refuses what the OCI runtime, or that of a shim, would ignore: by the specification it has
// to ignore what it does not know, and the container would run without it.
func (h Handler) check(s *specs.Spec) error {
	program := h.program()
	if program == "" {
		return nil
	}
	for _, m := range s.Mounts {
		if len(m.UIDMappings) > 0 && !h.Features.IDMap {
			return fault.Invalid.Errorf("mount at %s: %s does not map the owners of files", m.Destination, program)
		}
		if slices.Contains(m.Options, "nosymfollow") && !h.Features.NoSymFollow {
			return fault.Invalid.Errorf("mount at %s: %s does not know the option nosymfollow", m.Destination, program)
		}
	}
	for name := range s.Linux.NetDevices {
		if !h.Features.NetDevices {
			return fault.Invalid.Errorf("network device %s: %s moves no network devices", name, program)
		}
	}
	return nil
}

// handlerNames returns the names of all handlers, sorted: the kubelet publishes them in this
// order, and a changed order would update its node object.
func (s *Server) handlerNames() []string { return slices.Sorted(maps.Keys(s.current.Load().Handlers)) }

// handler returns a handler by name. CRI: "If the runtime handler is unknown, this request
// should be rejected."
func (s *Server) handler(name string) (Handler, error) {
	if h, ok := s.current.Load().Handlers[name]; ok {
		return h, nil
	}
	return Handler{}, fault.Invalid.Errorf("runtime handler %q is not known, only %s", name, strings.Join(s.handlerNames()[1:], ", "))
}

// networkOf returns the network of a handler's pods. A detach uses what was recorded at attach,
// so any network can do it for a handler that no longer exists.
func (s *Server) networkOf(handler string) Network {
	if h, ok := s.current.Load().Handlers[handler]; ok {
		return h.Network
	}
	return s.network
}

// networks returns all networks, that of the default handler first.
func (s *Server) networks() []Network {
	list := []Network{s.network}
	for _, h := range s.current.Load().Handlers {
		if !slices.Contains(list, h.Network) {
			list = append(list, h.Network)
		}
	}
	return list
}
