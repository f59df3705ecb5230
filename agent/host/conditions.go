package host

import (
	"fmt"
	"strings"

	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/readiness"
	"github.com/crisp-cri/crisp/internal/sdnotify"
	v1 "k8s.io/api/core/v1"
)

// Conditions show the runtime's state in the Node object and to the service manager.
type Conditions struct {
	Node     *node.State
	Wanted   *desired.Manager
	Endpoint string // of the runtime
}

// RuntimeChanged implements readiness.Watcher.
func (c Conditions) RuntimeChanged(s readiness.State) {
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
func (c Conditions) Line(s readiness.State) string {
	switch pods := len(c.Wanted.Pods()); {
	case !s.Answers:
		return fmt.Sprintf("%d pods; the runtime at %s does not answer", pods, c.Endpoint)
	case !s.Ready(false):
		return fmt.Sprintf("%d pods; %s: %s", pods, s.Reason, s.Message)
	default:
		return fmt.Sprintf("%d pods", pods)
	}
}
