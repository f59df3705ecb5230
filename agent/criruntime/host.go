package criruntime

import (
	"context"
	"fmt"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Host is what may be known of the node that pods run on, at any moment.
type Host interface {
	IPs() []string                                       // primary first; none: not known yet
	Allocatable() v1.ResourceList                        // what all pods can have together; nil: not known
	Handlers() []string                                  // names of the runtime's handlers; none: not known
	Features(handler string) *cri.RuntimeHandlerFeatures // nil: none is known
}

// A ContainerManager gives a pod what it needs of its node besides files.
type ContainerManager interface {
	// CgroupParent is where the pod's cgroup is; "": the runtime makes it.
	CgroupParent(pod *v1.Pod) string
	// UserNamespace says which IDs of the node the pod has.
	UserNamespace(pod *v1.Pod, handler string) (*cri.UserNamespace, error)
	// Prepare gives a pod what it needs, before its sandbox runs and before each of its
	// containers starts. It may be repeated.
	Prepare(ctx context.Context, pod *v1.Pod) error
	// Resize updates the pod's cgroup to the pod's resources. It is called after the
	// runtime's sandbox is updated, before containers get more and after they got less.
	Resize(pod *v1.Pod) error
	// Release takes all of it back when nothing of the pod runs any more. It may be
	// repeated.
	Release(uid string) error
}

// unknown is a host of which nothing is known.
type unknown struct{}

func (unknown) IPs() []string                               { return nil }
func (unknown) Allocatable() v1.ResourceList                { return nil }
func (unknown) Handlers() []string                          { return nil }
func (unknown) Features(string) *cri.RuntimeHandlerFeatures { return nil }

// noContainerManager leaves the cgroups of pods to the runtime, and gives no user namespaces.
type noContainerManager struct{}

func (noContainerManager) CgroupParent(*v1.Pod) string            { return "" }
func (noContainerManager) Prepare(context.Context, *v1.Pod) error { return nil }
func (noContainerManager) Resize(*v1.Pod) error                   { return nil }
func (noContainerManager) Release(string) error                   { return nil }

func (noContainerManager) UserNamespace(pod *v1.Pod, _ string) (*cri.UserNamespace, error) {
	if pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers {
		return nil, fmt.Errorf("pod %s: hostUsers is false and this agent gives no user namespaces", podsync.KeyOf(pod))
	}
	return &cri.UserNamespace{Mode: cri.NamespaceMode_NODE}, nil
}
