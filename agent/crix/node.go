package crix

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// handler is what the pod's RuntimeClass names; "" is the runtime's default. A
// name that the runtime does not know is an error that tells those it does.
func (d *Driver) handler(pod *v1.Pod) (string, error) {
	class, err := d.runtimeClass(pod)
	if err != nil || class == nil {
		return "", err
	}
	if d.Handlers != nil {
		if known := d.Handlers(); len(known) > 0 && !slices.Contains(known, class.Handler) {
			return "", fmt.Errorf("runtime class %s: the runtime has no handler %q; it has %q", class.Name, class.Handler, known)
		}
	}
	return class.Handler, nil
}

func (d *Driver) runtimeClass(pod *v1.Pod) (*nodev1.RuntimeClass, error) {
	if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "" {
		return nil, nil
	}
	return d.Objects.RuntimeClass(*pod.Spec.RuntimeClassName)
}

// Overhead is what the pod needs besides what its containers do: its own, or its
// RuntimeClass's.
func (d *Driver) Overhead(pod *v1.Pod) v1.ResourceList {
	if pod.Spec.Overhead != nil {
		return pod.Spec.Overhead
	}
	if class, err := d.runtimeClass(pod); err == nil && class != nil && class.Overhead != nil {
		return class.Overhead.PodFixed
	}
	return nil
}

// Requests are those of a pod with its overhead.
func (d *Driver) Requests(pod *v1.Pod) v1.ResourceList { return podspec.Requests(pod, d.Overhead(pod)) }

// Limits are those of a pod; its overhead adds to those that it has.
func (d *Driver) Limits(pod *v1.Pod) v1.ResourceList { return podspec.Limits(pod, d.Overhead(pod)) }

// node is what is known of the node now.
func (d *Driver) node() podspec.Node {
	n := podspec.Node{
		Agent:          d.agent,
		SeccompDir:     filepath.Join(d.Root, "seccomp"),
		ClusterDNS:     d.ClusterDNS,
		ClusterDomain:  d.ClusterDomain,
		SeccompDefault: d.SeccompDefault,
		NoCPUQuota:     d.NoCPUQuota,
		CPUPeriod:      d.CPUPeriod,
		Kernel:         d.kernel,
		IPs:            d.nodeIPs(),
	}
	if d.Allocatable != nil {
		n.Allocatable = d.Allocatable()
	}
	return n
}

// sized is what a pod's resources depend on.
func (d *Driver) sized(pod *v1.Pod) *podspec.Input {
	return &podspec.Input{Node: d.node(), Pod: pod, Overhead: d.Overhead(pod)}
}

// input is what a pod's sandbox and its containers depend on, but for their addresses.
func (d *Driver) input(pod *v1.Pod) (in *podspec.Input, err error) {
	in = d.sized(pod)
	in.Dir, in.LogDir = d.files.Dir(string(pod.UID)), d.files.LogDir(pod)
	if in.DNS, err = d.nodeDNS(pod); err != nil {
		return nil, err
	}
	if in.Handler, err = d.handler(pod); err != nil {
		return nil, err
	}
	switch {
	case d.UserNS != nil:
		in.UserNamespace, err = d.UserNS(pod, in.Handler)
	case pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers:
		err = fmt.Errorf("pod %s: hostUsers is false and this agent gives no user namespaces", podsync.KeyOf(pod))
	default:
		in.UserNamespace = &cri.UserNamespace{Mode: cri.NamespaceMode_NODE}
	}
	if d.CgroupParent != nil {
		in.CgroupParent = d.CgroupParent(pod)
	}
	in.RecursiveReadOnly = d.Features != nil && d.Features(in.Handler).GetRecursiveReadOnlyMounts()
	return in, err
}

// UserIDs are the IDs of the node that the user namespaces of all sandboxes have, whoever
// made them.
func (d *Driver) UserIDs() ([]*cri.IDMapping, error) {
	ctx := context.Background() // each call has its time limit
	list, err := d.runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, Fault(err)
	}
	var all []*cri.IDMapping
	for _, sb := range list {
		resp, err := d.runtime.PodSandboxStatus(ctx, sb.Id, false)
		if err = Fault(err); errors.Is(err, fault.NotFound) {
			continue
		} else if err != nil {
			return nil, err
		}
		ns := resp.GetStatus().GetLinux().GetNamespaces().GetOptions().GetUsernsOptions()
		all = append(append(all, ns.GetUids()...), ns.GetGids()...)
	}
	return all, nil
}
