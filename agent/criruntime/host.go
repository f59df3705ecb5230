package criruntime

import (
	"context"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Host has the current state of the node.
type Host interface {
	IPs() []string                                       // primary first; none if not known yet
	Allocatable() v1.ResourceList                        // of all pods together; nil if not known
	Handlers() []string                                  // names of the runtime's handlers; none if not known
	Features(handler string) *cri.RuntimeHandlerFeatures // nil if not known
}

// A ContainerManager gives a pod what it needs of its node besides files.
type ContainerManager interface {
	// CgroupParent returns the parent of the pod's cgroup; "" leaves it to the runtime.
	CgroupParent(pod *v1.Pod) string
	// UserNamespace returns the pod's user namespace, with its host IDs.
	UserNamespace(pod *v1.Pod, handler string) (*cri.UserNamespace, error)
	// Prepare makes what the pod needs, before its sandbox runs and before each of its
	// containers starts. It may be repeated.
	Prepare(ctx context.Context, pod *v1.Pod) error
	// Resize updates the pod's cgroup to the pod's resources. It is called after the
	// runtime's sandbox is updated, before containers get more and after they got less.
	Resize(pod *v1.Pod) error
	// Release frees all of it when nothing of the pod runs any more. It may be repeated.
	Release(uid string) error
}
