package agent

import (
	"maps"

	"github.com/crisp-cri/crisp/agent/housekeeping"
	"github.com/crisp-cri/crisp/agent/node"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// NodeConfig has the limits of pods, the resources that are reserved from them, and the rules of
// the housekeeping. The zero value has no thresholds and no bounds.
type NodeConfig struct {
	NoPodCgroups bool   // leave the cgroups of pods to the runtime
	CgroupRoot   string // cgroup above kubepods; "" is the root of the hierarchy
	PodPIDs      int64  // maximum number of processes of a pod; 0 is no limit
	MaxPods      int64  // maximum number of pods; 0 is node.DefaultPods
	NodeLabels   map[string]string
	// SystemReserved and KubeReserved are the resources of the node that pods may not use.
	SystemReserved, KubeReserved v1.ResourceList
	UnsafeSysctls                []string // that pods may set besides the safe ones
	NoPrivileged                 bool     // reject privileged containers

	Rules housekeeping.Rules // of the housekeeping
}

func (o *NodeConfig) Reserved() v1.ResourceList {
	total := o.SystemReserved.DeepCopy()
	if total == nil {
		total = v1.ResourceList{}
	}
	for name, q := range o.KubeReserved {
		sum := total[name]
		sum.Add(q)
		total[name] = sum
	}
	return total
}

// Describe sets the node's labels, capacity and allocatable resources. The file system of root
// is the node's ephemeral storage.
func (o *NodeConfig) Describe(n *node.State, root string) {
	capacity := n.Node().Status.Capacity.DeepCopy()
	if o.MaxPods > 0 {
		capacity[v1.ResourcePods] = *resource.NewQuantity(o.MaxPods, resource.DecimalSI)
	}
	if bytes, _, err := housekeeping.Space(root); err == nil {
		capacity[v1.ResourceEphemeralStorage] = *resource.NewQuantity(bytes.Capacity, resource.BinarySI)
	}
	n.SetAllocatable(capacity, node.Allocatable(capacity, o.Reserved(), housekeeping.Reserved(o.Rules.Evict, capacity), node.Pooled(capacity)))
	n.Edit(func(obj *v1.Node) {
		obj.Labels = maps.Clone(obj.Labels)
		maps.Copy(obj.Labels, o.NodeLabels)
	})
}
