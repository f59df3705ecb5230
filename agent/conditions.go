package agent

import (
	"strings"

	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/readiness"
	"github.com/crisp-cri/crisp/internal/sdnotify"
	v1 "k8s.io/api/core/v1"
)

// conditions show the runtime's state in the node's conditions, and to the service manager.
type conditions struct {
	node     *node.State
	wanted   *desired.Manager
	endpoint string // of the runtime
}

// RuntimeChanged is as readiness.Watcher says.
func (c conditions) RuntimeChanged(s readiness.State) {
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
	sdnotify.Notify("STATUS=" + c.line(s))
	c.node.SetCondition(v1.NodeReady, status(s.Ready(false)), reason, message)
	c.node.SetCondition(v1.NodeNetworkUnavailable, status(!s.NetworkReady), s.Reason, s.Message)
	c.node.Edit(func(n *v1.Node) {
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
