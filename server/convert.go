package server

import (
	"slices"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/oci"
)

// sandboxState converts a state to CRI's. A sandbox that is being torn down is not ready any
// more, but stays in lists until it is gone.
func sandboxState(st oci.SandboxState) cri.PodSandboxState {
	if st == oci.SandboxReady {
		return cri.PodSandboxState_SANDBOX_READY
	}
	return cri.PodSandboxState_SANDBOX_NOTREADY
}

func containerState(st oci.State) cri.ContainerState {
	switch st {
	case oci.Created, oci.Starting:
		return cri.ContainerState_CONTAINER_CREATED
	case oci.Running, oci.Stopping:
		return cri.ContainerState_CONTAINER_RUNNING
	}
	return cri.ContainerState_CONTAINER_EXITED
}

// selects reports whether labels match all of selector.
func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// visibleSandboxes returns the sandboxes that lists show, oldest first.
func (s *Server) visibleSandboxes() []*oci.Sandbox {
	return slices.DeleteFunc(s.runtime.Sandboxes(), func(sb *oci.Sandbox) bool {
		return sb.State() == oci.SandboxCreating || s.sandboxes.isHidden(sb.ID())
	})
}

// visibleContainers returns the containers that lists show, oldest first. Those of a pod being
// restored become visible with the pod.
func (s *Server) visibleContainers() []*oci.Container {
	return slices.DeleteFunc(s.runtime.Containers(), s.isHidden)
}

// isHidden reports whether c is still hidden from clients: itself (see creations), or with its
// pod, which is being restored.
func (s *Server) isHidden(c *oci.Container) bool {
	return s.containers.isHidden(c.ID()) || s.sandboxes.isHidden(c.SandboxID())
}

func (s *Server) containerStatuses(sb *oci.Sandbox) []*cri.ContainerStatus {
	var list []*cri.ContainerStatus
	for _, c := range sb.Containers() {
		if !s.isHidden(c) {
			list = append(list, s.containerStatus(c))
		}
	}
	return list
}

// hasPrefix matches an ID filter: CRI lets clients shorten IDs everywhere.
func hasPrefix(id, filter string) bool { return strings.HasPrefix(id, filter) }
