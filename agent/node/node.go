// Package node keeps the Node object of this machine: its capacity, its allocatable resources
// and its conditions. Other parts of the agent update it; the local API and "crisp status" show
// it. None of that is on disk, since all of it can be determined again.
//
// It also has what the pods of the node are given: whether one may run here (CheckAdmission), which
// resources it has (Pods), its cgroup (CgroupTree) and its host IDs (IDPool).
package node

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/poke"
)

// DefaultPods is the default of the kubelet's maxPods.
const DefaultPods = 110

// A State has the current Node object. It is safe for concurrent use.
type State struct {
	changed chan struct{} // of capacity 1

	mu   sync.Mutex
	node *v1.Node // replaced, never changed; guarded by mu
}

// New returns the State of a node of this name, filled in from the kernel and /etc.
func New(name, agentVersion string, ips []string) *State {
	n := &v1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(name), CreationTimestamp: metav1.Now().Rfc3339Copy(),
			Labels: map[string]string{v1.LabelHostname: name, v1.LabelOSStable: runtime.GOOS, v1.LabelArchStable: runtime.GOARCH},
		},
	}
	n.Status.Capacity = v1.ResourceList{
		v1.ResourceCPU:    *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(kernel.TotalMemory(), resource.BinarySI),
		v1.ResourcePods:   *resource.NewQuantity(DefaultPods, resource.DecimalSI),
	}
	maps.Copy(n.Status.Capacity, hugePages("/sys/kernel/mm/hugepages"))
	n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	n.Status.Addresses = addresses(name, ips)
	n.Status.NodeInfo = v1.NodeSystemInfo{
		MachineID: line("/etc/machine-id"), BootID: line("/proc/sys/kernel/random/boot_id"), SystemUUID: line("/sys/class/dmi/id/product_uuid"),
		KernelVersion: line("/proc/sys/kernel/osrelease"), OSImage: osImage(), OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
		KubeletVersion: agentVersion,
	}
	return &State{node: n, changed: make(chan struct{}, 1)}
}

// line returns the first line of a file; "" if it cannot be read.
func line(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(data), "\n")
	return strings.TrimSpace(first)
}

func osImage() string {
	data, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(name, `"`)
		}
	}
	return ""
}

// Changed returns the channel that receives a value when the node has changed, for a single
// receiver.
func (s *State) Changed() <-chan struct{} { return s.changed }

// Edit changes the node: edit changes a copy, which replaces the node.
func (s *State) Edit(edit func(*v1.Node)) {
	s.mu.Lock()
	next := s.node.DeepCopy()
	edit(next)
	s.node = next
	s.mu.Unlock()
	poke.Wake(s.changed)
}

// SetCondition sets a condition. The time of its last transition changes only if the status
// does.
func (s *State) SetCondition(kind v1.NodeConditionType, status v1.ConditionStatus, reason, message string) {
	s.Edit(func(n *v1.Node) {
		now := metav1.Now().Rfc3339Copy()
		c := v1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now}
		for i, old := range n.Status.Conditions {
			if old.Type != kind {
				continue
			}
			if old.Status == status {
				c.LastTransitionTime = old.LastTransitionTime
			}
			n.Status.Conditions[i] = c
			return
		}
		n.Status.Conditions = append(n.Status.Conditions, c)
	})
}

// SetAddresses sets the node's addresses, primary first.
func (s *State) SetAddresses(ips []string) {
	s.Edit(func(n *v1.Node) { n.Status.Addresses = addresses(n.Name, ips) })
}

func addresses(name string, ips []string) []v1.NodeAddress {
	var list []v1.NodeAddress
	for _, ip := range ips {
		list = append(list, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	return append(list, v1.NodeAddress{Type: v1.NodeHostName, Address: name})
}

// SetAllocatable sets the node's capacity and its allocatable resources.
func (s *State) SetAllocatable(capacity, allocatable v1.ResourceList) {
	s.Edit(func(n *v1.Node) { n.Status.Capacity, n.Status.Allocatable = capacity, allocatable })
}

// Node returns the node; it is shared and read-only.
func (s *State) Node() *v1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

// hugePages returns the bytes in each pool of huge pages, including empty ones:
// "hugepages-2Mi". dir is /sys/kernel/mm/hugepages, which a kernel without huge pages does
// not have (Documentation/admin-guide/mm/hugetlbpage.rst).
func hugePages(dir string) v1.ResourceList {
	pools := v1.ResourceList{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return pools
	}
	for _, e := range entries {
		var kib int64
		if n, err := fmt.Sscanf(e.Name(), "hugepages-%dkB", &kib); n != 1 || err != nil {
			continue
		}
		pages, err := strconv.ParseInt(line(filepath.Join(dir, e.Name(), "nr_hugepages")), 10, 64)
		if err != nil {
			continue
		}
		size := resource.NewQuantity(kib<<10, resource.BinarySI)
		pools[v1.ResourceName(v1.ResourceHugePagesPrefix+size.String())] = *resource.NewQuantity(pages*size.Value(), resource.BinarySI)
	}
	return pools
}
