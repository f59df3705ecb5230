package server

import (
	"context"
	"encoding/json"
	"runtime"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Status reports whether pods can run: whether there is an executor that answers. The network
// condition is the current state of the node's network. A handler whose own network is not ready
// does not block the pods of other handlers; only the verbose response reports it.
func (s *Server) Status(_ context.Context, req *cri.StatusRequest) (*cri.StatusResponse, error) {
	net := &cri.RuntimeCondition{Type: cri.NetworkReady, Status: true}
	if err := s.network.Status(); err != nil {
		net.Status, net.Reason, net.Message = false, "NetworkPluginNotReady", err.Error()
	}
	ready := &cri.RuntimeCondition{Type: cri.RuntimeReady, Status: true}
	if err := s.runtime.Trouble(); err != nil {
		ready.Status, ready.Reason, ready.Message = false, "ExecutorNotReady", err.Error()
	}
	resp := &cri.StatusResponse{
		Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{ready, net}},
		Features: &cri.RuntimeFeatures{
			SupplementalGroupsPolicy:  true,
			MountOptions:              true,
			UserNamespacesHostNetwork: s.o.NoUserNS == nil,
		},
	}
	for _, name := range s.handlerNames() {
		h := s.current.Load().Handlers[name]
		resp.RuntimeHandlers = append(resp.RuntimeHandlers, &cri.RuntimeHandler{
			Name: name,
			Features: &cri.RuntimeHandlerFeatures{
				RecursiveReadOnlyMounts: h.SpecHost.RecursiveRO,
				UserNamespaces:          h.NoUserNS == nil,
			},
		})
	}
	if req.Verbose {
		info, err := s.statusInfo()
		if err != nil {
			return nil, fault.Internal.Errorf("encode info: %w", err)
		}
		resp.Info = info
	}
	return resp, nil
}

// statusInfo returns the verbose part: crispd's configuration and the operations it waits for.
func (s *Server) statusInfo() (map[string]string, error) {
	driver := "cgroupfs"
	if s.o.SystemdCgroup {
		driver = "systemd"
	}
	networks, handlers := map[string]string{}, map[string]handlerInfo{}
	for _, name := range s.handlerNames() {
		handlers[name] = s.current.Load().Handlers[name].info()
		networks[name] = "ready"
		if err := s.current.Load().Handlers[name].Network.Status(); err != nil {
			networks[name] = err.Error()
		}
	}
	config, err := json.Marshal(map[string]any{
		"rootDir":        s.o.Root,
		"stateDir":       s.o.State,
		"cgroupDriver":   driver,
		"version":        s.o.Version,
		"golang":         runtime.Version(),
		"eventsDropped":  s.events.hub.Dropped(),
		"runtimeHandler": s.handlerNames(),
		"handlers":       handlers,
		"network":        networks,
	})
	if err != nil {
		return nil, err
	}
	activity, err := json.Marshal(map[string]any{"pulls": s.images.Pulls(), "starting": s.starting()})
	if err != nil {
		return nil, err
	}
	return map[string]string{"config": string(config), "activity": string(activity)}, nil
}
