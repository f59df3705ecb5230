package criruntime

import (
	"context"

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
