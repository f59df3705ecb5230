// Package host has what the agent knows about this node (Host), the node's configuration
// (Config), and the runtime's state for the Node object and the service manager (Conditions).
package host

import (
	"github.com/crisp-cri/crisp/agent/criconn"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/readiness"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Host has the current state of this node. It implements criruntime.Host and status.Host.
type Host struct {
	Addresses *node.Addresses
	Node      *node.State
	Readiness *readiness.Monitor
	Runtime   *criconn.Connection
}

// IPs implements status.Host.
func (h Host) IPs() []string { return h.Addresses.Get() }

// RuntimeName implements status.Host.
func (h Host) RuntimeName() string { return h.Runtime.RuntimeName() }

// Allocatable returns the node's allocatable resources.
func (h Host) Allocatable() v1.ResourceList { return h.Node.Node().Status.Allocatable }

// Handlers returns the names of the runtime's handlers, sorted.
func (h Host) Handlers() []string { return h.Readiness.Get().HandlerNames() }

// Features returns the features that the runtime reports for a handler, nil if not known.
func (h Host) Features(handler string) *cri.RuntimeHandlerFeatures {
	return h.Readiness.HandlerFeatures(handler)
}
