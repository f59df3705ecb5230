package agent

import (
	"fmt"
	"strings"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/internal/sdnotify"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// nodeConditions show the runtime's state in the Node object and to the service manager.
type nodeConditions struct {
	Node     *node.State
	Wanted   *source.Manager
	Endpoint string // of the runtime
}

// RuntimeChanged implements criruntime.Watcher.
func (c nodeConditions) RuntimeChanged(s criruntime.State) {
	status := func(ok bool) v1.ConditionStatus {
		if ok {
			return v1.ConditionTrue
		}
		return v1.ConditionFalse
	}
	reason, message := "KubeletReady", "the runtime is ready"
	if !s.Ready(false) {
		reason, message = "KubeletNotReady", strings.TrimPrefix(s.Reason+": "+s.Message, ": ")
	}
	sdnotify.Notify("STATUS=" + c.Line(s))
	c.Node.SetCondition(v1.NodeReady, status(s.Ready(false)), reason, message)
	c.Node.SetCondition(v1.NodeNetworkUnavailable, status(!s.NetworkReady), s.Reason, s.Message)
	c.Node.Edit(func(n *v1.Node) {
		n.Status.RuntimeHandlers = nil
		for _, h := range s.Handlers {
			handler := v1.NodeRuntimeHandler{Name: h.Name, Features: &v1.NodeRuntimeHandlerFeatures{}}
			if f := h.Features; f != nil {
				handler.Features.RecursiveReadOnlyMounts, handler.Features.UserNamespaces = &f.RecursiveReadOnlyMounts, &f.UserNamespaces
			}
			n.Status.RuntimeHandlers = append(n.Status.RuntimeHandlers, handler)
		}
		if s.Version != "" {
			n.Status.NodeInfo.ContainerRuntimeVersion = s.Version
		}
	})
}

// Line returns the status text for the service manager.
func (c nodeConditions) Line(s criruntime.State) string {
	switch pods := len(c.Wanted.Pods()); {
	case !s.Answers:
		return fmt.Sprintf("%d pods; the runtime at %s does not answer", pods, c.Endpoint)
	case !s.Ready(false):
		return fmt.Sprintf("%d pods; %s: %s", pods, s.Reason, s.Message)
	default:
		return fmt.Sprintf("%d pods", pods)
	}
}

// A nodeHost has the current state of this node. It implements criruntime.Host and status.Host.
type nodeHost struct {
	Addresses *node.Addresses
	Node      *node.State
	Readiness *criruntime.Monitor
	Runtime   *criruntime.Connection
}

func (h nodeHost) IPs() []string { return h.Addresses.Get() }

func (h nodeHost) RuntimeName() string { return h.Runtime.RuntimeName() }

func (h nodeHost) Allocatable() v1.ResourceList { return h.Node.Node().Status.Allocatable }

// Handlers returns the names of the runtime's handlers, sorted.
func (h nodeHost) Handlers() []string { return h.Readiness.Get().HandlerNames() }

// Features returns the features that the runtime reports for a handler, nil if not known.
func (h nodeHost) Features(handler string) *cri.RuntimeHandlerFeatures {
	return h.Readiness.HandlerFeatures(handler)
}
