package node

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// An AdmissionInput is what the admission of a pod depends on.
type AdmissionInput struct {
	Name          string
	Labels        map[string]string
	Allocatable   v1.ResourceList
	UnsafeSysctls []string // allowed besides the safe ones; "a.b.*" allows every sysctl below a.b
	NoPrivileged  bool
	Pressure      []v1.NodeConditionType // the pressures that are true now
	Features      *cri.RuntimeFeatures   // of the runtime; nil if it does not report them
	Pods          PodFacts
}

// PodFacts has the properties of pods that depend on their RuntimeClasses.
type PodFacts interface {
	// Handler returns the features of the handler of a pod's RuntimeClass; nil if they
	// are not known.
	Handler(*v1.Pod) *cri.RuntimeHandlerFeatures
	// Requests returns the requests of a pod, with its overhead.
	Requests(*v1.Pod) v1.ResourceList
}

// CheckAdmission decides whether a pod may run on this node. It is pure: the node, its pods and the
// new pod go in, a verdict comes out. Reasons and messages are the kubelet's. The agent asks again
// for a rejected pod when something has changed on the node, unless the pod belongs to a workload,
// which replaces it.
//
// It returns why pod may not run beside the others, or nil. victims are the pods that
// it preempts; only a critical pod has any.
func CheckAdmission(pod *v1.Pod, others []*v1.Pod, n *AdmissionInput) (v *podsync.Verdict, victims []*v1.Pod) {
	for _, check := range []func(*v1.Pod, *AdmissionInput) *podsync.Verdict{pressure, system, sysctls, security, affinity} {
		if v := check(pod, n); v != nil {
			return v, nil
		}
	}
	left := others
	v, users := ports(pod, left)
	if v != nil {
		if slices.ContainsFunc(users, func(o *v1.Pod) bool { return !yields(o, pod) }) {
			return v, nil
		}
		victims = append(victims, users...)
		left = without(left, users)
	}
	for _, name := range append([]v1.ResourceName{v1.ResourcePods, v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}, hugePageNames(n.Pods.Requests(pod))...) {
		v, missing := lacks(name, pod, left, n)
		if v == nil {
			continue
		}
		chosen, ok := choose(name, missing, pod, left, n)
		if !ok {
			return v, nil
		}
		victims = append(victims, chosen...)
		left = without(left, chosen)
	}
	return nil, victims
}

const rejected = "Pod was rejected: "

func reject(reason, format string, args ...any) *podsync.Verdict {
	return &podsync.Verdict{Reason: reason, Message: rejected + fmt.Sprintf(format, args...)}
}

// pressure rejects pods while the node is short of something: all but critical ones, and under
// memory pressure alone only those of class BestEffort that do not tolerate its taint.
func pressure(pod *v1.Pod, n *AdmissionInput) *podsync.Verdict {
	if len(n.Pressure) == 0 || podsync.Priority(pod) >= podsync.SystemCritical {
		return nil
	}
	if len(n.Pressure) == 1 && n.Pressure[0] == v1.NodeMemoryPressure {
		if status.QOS(pod) != v1.PodQOSBestEffort {
			return nil
		}
		taint := v1.Taint{Key: v1.TaintNodeMemoryPressure, Effect: v1.TaintEffectNoSchedule}
		if slices.ContainsFunc(pod.Spec.Tolerations, func(t v1.Toleration) bool { return t.ToleratesTaint(klog.Background(), &taint, false) }) {
			return nil
		}
	}
	return &podsync.Verdict{Reason: podsync.EvictedReason, Message: fmt.Sprintf("The node had condition: %v. ", n.Pressure)}
}

// system rejects pods for another operating system.
func system(pod *v1.Pod, n *AdmissionInput) *podsync.Verdict {
	if os := pod.Spec.OS; os != nil && os.Name != v1.Linux {
		return reject("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
	}
	if want, ok := pod.Spec.NodeSelector[v1.LabelOSStable]; ok && want != n.Labels[v1.LabelOSStable] {
		return reject("PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label")
	}
	return nil
}

// ports returns the pods that have a host port that the pod wants, and the verdict on it if
// they stay.
func ports(pod *v1.Pod, others []*v1.Pod) (*podsync.Verdict, []*v1.Pod) {
	wants := hostPorts(pod)
	var users []*v1.Pod
	for _, o := range others {
		if slices.ContainsFunc(hostPorts(o), func(p v1.ContainerPort) bool {
			return slices.ContainsFunc(wants, func(w v1.ContainerPort) bool { return collide(p, w) })
		}) {
			users = append(users, o)
		}
	}
	if len(users) == 0 {
		return nil, nil
	}
	return reject("NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports (pod %s has one of them)", podsync.KeyOf(users[0])), users
}

func hostPorts(pod *v1.Pod) []v1.ContainerPort {
	var ports []v1.ContainerPort
	for c := range podsync.Lasting(&pod.Spec) {
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				ports = append(ports, p)
			}
		}
	}
	return ports
}

func collide(a, b v1.ContainerPort) bool {
	every := func(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }
	return a.HostPort == b.HostPort && a.Protocol == b.Protocol && (a.HostIP == b.HostIP || every(a.HostIP) || every(b.HostIP))
}

// requests returns how much a pod requests of a resource: CPU in milli-CPUs, anything else in
// units.
func requests(name v1.ResourceName, pod *v1.Pod, n *AdmissionInput) int64 {
	if name == v1.ResourcePods {
		return 1
	}
	return amount(name, n.Pods.Requests(pod))
}

func amount(name v1.ResourceName, list v1.ResourceList) int64 {
	q := list[name]
	if name == v1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// lacks returns a verdict if too little of a resource is left for a pod, and how much is
// missing.
func lacks(name v1.ResourceName, pod *v1.Pod, others []*v1.Pod, n *AdmissionInput) (*podsync.Verdict, int64) {
	_, limited := n.Allocatable[name]
	wants := requests(name, pod, n)
	if wants == 0 || !limited && !manifest.IsHugePages(name) { // the node has no huge pages of a size that it does not list
		return nil, 0
	}
	used := int64(0)
	for _, o := range others {
		used += requests(name, o, n)
	}
	has := amount(name, n.Allocatable)
	if missing := used + wants - has; missing > 0 {
		return reject("OutOf"+string(name), "Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, wants, used, has), missing
	}
	return nil, 0
}

// Fits returns why there is no room now for the requests of a resized pod, or nil.
func Fits(pod *v1.Pod, others []*v1.Pod, n *AdmissionInput) *podsync.Verdict {
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		if v, _ := lacks(name, pod, others, n); v != nil {
			v.Message = strings.TrimPrefix(v.Message, rejected) // only the resize is rejected
			return v
		}
	}
	return nil
}

// yields reports whether o may be preempted for pod.
func yields(o, pod *v1.Pod) bool {
	return podsync.Priority(pod) >= podsync.SystemCritical && podsync.Priority(o) < podsync.SystemCritical
}

// preemptionOrder are the QoS classes in the order in which their pods are preempted.
var preemptionOrder = []v1.PodQOSClass{v1.PodQOSBestEffort, v1.PodQOSBurstable, v1.PodQOSGuaranteed}

// choose returns the pods to preempt to free what is missing of a resource: those of the lowest
// class and priority, and no more than needed. ok is false if that would not suffice.
func choose(name v1.ResourceName, missing int64, pod *v1.Pod, others []*v1.Pod, n *AdmissionInput) (victims []*v1.Pod, ok bool) {
	var candidates []*v1.Pod
	for _, o := range others {
		if yields(o, pod) && requests(name, o, n) > 0 {
			candidates = append(candidates, o)
		}
	}
	slices.SortStableFunc(candidates, func(a, b *v1.Pod) int {
		return cmp.Or(
			cmp.Compare(slices.Index(preemptionOrder, status.QOS(a)), slices.Index(preemptionOrder, status.QOS(b))),
			cmp.Compare(podsync.Priority(a), podsync.Priority(b)),
			cmp.Compare(requests(name, b, n), requests(name, a, n)), // the largest first
		)
	})
	for _, o := range candidates {
		if missing <= 0 {
			break
		}
		victims = append(victims, o)
		missing -= requests(name, o, n)
	}
	if missing > 0 {
		return nil, false
	}
	// The last victims may free so much that earlier ones can stay.
	kept := victims[:0:0]
	for _, o := range victims {
		if size := requests(name, o, n); missing+size <= 0 {
			missing += size
			continue
		}
		kept = append(kept, o)
	}
	return kept, true
}

// Preempted returns the verdict on a pod that is preempted.
func Preempted() podsync.Verdict {
	return podsync.Verdict{
		Reason: podsync.PreemptedReason, Message: "Preempted in order to admit critical pod",
		Condition: &v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: "Pod was preempted by Kubelet to accommodate a critical pod."},
	}
}

func without(pods, gone []*v1.Pod) []*v1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p *v1.Pod) bool { return slices.Contains(gone, p) })
}

// hugePageNames returns the names of the huge page resources in a list, sorted.
func hugePageNames(list v1.ResourceList) []v1.ResourceName {
	names := slices.Sorted(maps.Keys(list))
	return slices.DeleteFunc(names, func(name v1.ResourceName) bool { return !manifest.IsHugePages(name) })
}

// Pooled returns the memory in pools of huge pages, which is not available to pods as memory.
func Pooled(capacity v1.ResourceList) v1.ResourceList {
	memory := resource.NewQuantity(0, resource.BinarySI)
	for _, name := range hugePageNames(capacity) {
		memory.Add(capacity[name])
	}
	return v1.ResourceList{v1.ResourceMemory: *memory}
}

// Allocatable returns the allocatable resources of a node: its capacity less the reserved ones.
func Allocatable(capacity v1.ResourceList, reserved ...v1.ResourceList) v1.ResourceList {
	out := capacity.DeepCopy()
	for _, list := range reserved {
		for name, by := range list {
			q, ok := out[name]
			if !ok {
				continue
			}
			if q.Sub(by); q.Sign() < 0 {
				q = *resource.NewQuantity(0, q.Format)
			}
			out[name] = q
		}
	}
	return out
}

// safeSysctls are the sysctls that every pod may set: they affect only the pod itself. The list is the
// kubelet's.
var safeSysctls = []string{
	"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
	"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout",
	"net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
}

func sysctls(pod *v1.Pod, n *AdmissionInput) *podsync.Verdict {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		name := strings.ReplaceAll(s.Name, "/", ".")
		net, ipc := strings.HasPrefix(name, "net."), strings.HasPrefix(name, "kernel.shm") || strings.HasPrefix(name, "kernel.msg") || name == "kernel.sem" || strings.HasPrefix(name, "fs.mqueue.")
		switch {
		case !slices.Contains(safeSysctls, name) && !slices.ContainsFunc(n.UnsafeSysctls, func(pattern string) bool { return matches(pattern, name) }):
			return reject("SysctlForbidden", "forbidden sysctl: %q not allowlisted: --allowed-unsafe-sysctls=%s of the agent would allow it", name, name)
		case net && pod.Spec.HostNetwork:
			return reject("SysctlForbidden", "forbidden sysctl: %q not allowed with host net enabled", name)
		case ipc && pod.Spec.HostIPC:
			return reject("SysctlForbidden", "forbidden sysctl: %q not allowed with host ipc enabled", name)
		}
	}
	return nil
}

func matches(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// security rejects pods whose security settings the node forbids, or its runtime does not
// support.
func security(pod *v1.Pod, n *AdmissionInput) *podsync.Verdict {
	own := !ptr.Deref(pod.Spec.HostUsers, true)
	if own {
		if f := n.Pods.Handler(pod); f != nil && !f.UserNamespaces {
			return reject("UserNamespacesNotSupported", "hostUsers is false and the runtime's handler has no user namespaces")
		}
	}
	for c := range podsync.Containers(&pod.Spec) {
		sc := c.SecurityContext
		if sc == nil {
			continue
		}
		if n.NoPrivileged && ptr.Deref(sc.Privileged, false) {
			return reject("PrivilegedForbidden", "container %s is privileged, which this node does not allow", c.Name)
		}
		if ptr.Deref(sc.ProcMount, "") == v1.UnmaskedProcMount && !own {
			return reject("ProcMountForbidden", "container %s has procMount Unmasked, which needs hostUsers false", c.Name)
		}
	}
	sc := pod.Spec.SecurityContext
	if sc != nil && ptr.Deref(sc.SupplementalGroupsPolicy, "") == v1.SupplementalGroupsPolicyStrict &&
		n.Features != nil && !n.Features.SupplementalGroupsPolicy {
		return reject("SupplementalGroupsPolicyNotSupported", "supplementalGroupsPolicy Strict is not supported by the runtime")
	}
	return nil
}

// affinity checks nodeSelector and the required node affinity.
func affinity(pod *v1.Pod, n *AdmissionInput) *podsync.Verdict {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}}
	if fits, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err == nil && fits {
		return nil
	}
	return reject("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")
}

// Infeasible returns why a resize can never be granted, or nil: the requests exceed what the
// node has for all pods together. The message is that of kubelet v1.35. Since v1.36 the API
// server, which this agent does without, refuses such a resize before a kubelet sees it.
func Infeasible(requests, allocatable v1.ResourceList) *podsync.Pending {
	for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceCPU} {
		has, known := allocatable[name]
		if wants := requests[name]; known && wants.Cmp(has) > 0 {
			return &podsync.Pending{Reason: v1.PodReasonInfeasible, Message: fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", name, amount(name, requests), amount(name, allocatable))}
		}
	}
	return nil
}
