package criruntime

import (
	"cmp"
	"context"
	"fmt"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/pulls"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// withParts adds parts without function to the options where they are missing.
func withParts(o Options) Options {
	o.Events, o.Objects, o.Host = cmp.Or(o.Events, status.DiscardEvents), cmp.Or[Objects](o.Objects, none{}), cmp.Or[Host](o.Host, unknown{})
	o.Progress, o.ContainerManager = cmp.Or[PullWatcher](o.Progress, blind{}), cmp.Or[ContainerManager](o.ContainerManager, noContainerManager{})
	return o
}

// unknown is a host without known properties.
type unknown struct{}

func (unknown) IPs() []string                               { return nil }
func (unknown) Allocatable() v1.ResourceList                { return nil }
func (unknown) Handlers() []string                          { return nil }
func (unknown) Features(string) *cri.RuntimeHandlerFeatures { return nil }

// noContainerManager leaves the cgroups of pods to the runtime, and has no user namespaces.
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

// none has no objects.
type none struct{}

func (none) ConfigMap(namespace, name string) (*v1.ConfigMap, error) {
	return nil, fault.NotFound.Errorf("there is no config map %s/%s", namespace, name)
}

func (none) Secret(namespace, name string) (*v1.Secret, error) {
	return nil, fault.NotFound.Errorf("there is no secret %s/%s", namespace, name)
}

func (none) RuntimeClass(name string) (*nodev1.RuntimeClass, error) {
	return nil, fault.NotFound.Errorf("there is no runtime class %s", name)
}

func (none) Claim(namespace, name string) (*v1.PersistentVolumeClaim, error) {
	return nil, fault.NotFound.Errorf("there is no claim %s/%s", namespace, name)
}

// blind is a PullWatcher that never reports progress.
type blind struct{}

func (blind) Follow(context.Context, string, string, func(pulls.Pull)) {}
