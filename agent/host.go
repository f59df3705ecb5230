package agent

import (
	"github.com/crisp-cri/crisp/agent/criconn"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/readiness"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A host is what is known of this node. It is criruntime.Host and status.Host.
type host struct {
	addresses *node.Addresses
	node      *node.State
	readiness *readiness.Monitor
	runtime   *criconn.Connection
}

func (h host) IPs() []string { return h.addresses.Get() }

// RuntimeName is as status.Host says.
func (h host) RuntimeName() string { return h.runtime.RuntimeName() }

func (h host) Allocatable() v1.ResourceList { return h.node.Node().Status.Allocatable }

func (h host) Handlers() []string { return h.readiness.Get().HandlerNames() }

func (h host) Features(handler string) *cri.RuntimeHandlerFeatures {
	return h.readiness.HandlerFeatures(handler)
}
