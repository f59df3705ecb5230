// Package host is what is known of this node, for those that ask (Host) and for those that are
// shown it (Conditions), and what of it pods may have (Config).
package host

import (
	"github.com/crisp-cri/crisp/agent/criconn"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/readiness"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Host is what is known of this node. It is criruntime.Host and status.Host.
type Host struct {
	Addresses *node.Addresses
	Node      *node.State
	Readiness *readiness.Monitor
	Runtime   *criconn.Connection
}

// IPs are the addresses of the node, as status.Host says.
func (h Host) IPs() []string { return h.Addresses.Get() }

// RuntimeName implements status.Host.
func (h Host) RuntimeName() string { return h.Runtime.RuntimeName() }

// Allocatable is what of the node pods may have.
func (h Host) Allocatable() v1.ResourceList { return h.Node.Node().Status.Allocatable }

// Handlers are the names of those that the runtime has.
func (h Host) Handlers() []string { return h.Readiness.Get().HandlerNames() }

// Features are what the runtime says that a handler can do.
func (h Host) Features(handler string) *cri.RuntimeHandlerFeatures {
	return h.Readiness.HandlerFeatures(handler)
}
