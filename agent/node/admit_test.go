package node

import (
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/manifest"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func pod(t *testing.T, name, spec string) *v1.Pod {
	t.Helper()
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  " + spec + "\n"
	if !strings.Contains(spec, "containers:") {
		text += "  containers: [{name: a, image: i}]\n"
	}
	objects, _, err := manifest.Read("p.yaml", []byte(text), manifest.Options{NodeName: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	return objects[0].(*v1.Pod)
}

func with(requests string) string {
	return "containers: [{name: a, image: i, resources: {requests: {" + requests + "}}}]"
}

// pages returns a container with huge pages, which need CPU or memory beside them.
func pages(limits string) string {
	return "containers: [{name: a, image: i, resources: {limits: {cpu: 1m, " + limits + "}}}]"
}

// plain has no RuntimeClasses; its pods have one container.
type plain struct{}

func (plain) Handler(*v1.Pod) *cri.RuntimeHandlerFeatures { return &cri.RuntimeHandlerFeatures{} }

func (plain) Requests(p *v1.Pod) v1.ResourceList { return p.Spec.Containers[0].Resources.Requests }

func testNode() *AdmissionInput {
	return &AdmissionInput{
		Name: "n1", Labels: map[string]string{"disk": "ssd", "size": "5", v1.LabelOSStable: "linux"},
		Allocatable: v1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("4"), "ephemeral-storage": resource.MustParse("1Gi"), "hugepages-2Mi": resource.MustParse("8Mi")},
		Features:    &cri.RuntimeFeatures{},
		Pods:        plain{},
	}
}

func TestCheck(t *testing.T) {
	const port = "containers: [{name: a, image: i, ports: [{containerPort: 80, hostPort: 8080%s}]}]"
	ports := func(more string) string { return strings.Replace(port, "%s", more, 1) }
	affinity := func(expr string) string {
		return "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [" + expr + "]}]}}}"
	}
	for _, test := range []struct {
		spec   string
		others []string
		edit   func(*AdmissionInput)
		want   string // the reason; "" means admitted
	}{
		{spec: with("cpu: 1000"), want: "OutOfcpu"},
		{spec: with("cpu: 1"), others: []string{with("cpu: 1500m")}, want: "OutOfcpu"},
		{spec: with("cpu: 500m"), others: []string{with("cpu: 1500m")}},
		{spec: with("memory: 2Gi"), want: "OutOfmemory"},
		{spec: with("ephemeral-storage: 512Mi"), others: []string{with("ephemeral-storage: 513Mi")}, want: "OutOfephemeral-storage"},
		{spec: pages("hugepages-2Mi: 4Mi"), others: []string{pages("hugepages-2Mi: 6Mi")}, want: "OutOfhugepages-2Mi"},
		{spec: pages("hugepages-2Mi: 4Mi"), others: []string{pages("hugepages-2Mi: 4Mi"), pages("hugepages-1Gi: 4Gi")}},
		{spec: pages("hugepages-1Gi: 1Gi"), want: "OutOfhugepages-1Gi"},
		{spec: "hostIPC: false", others: []string{"hostIPC: false", "hostIPC: false", "hostIPC: false", "hostIPC: false"}, want: "OutOfpods"},
		{spec: "hostIPC: false", others: []string{with("cpu: 100")}}, // it requests nothing
		{spec: ports(""), others: []string{ports("")}, want: "NodePorts"},
		{spec: ports(", hostIP: 127.0.0.1"), others: []string{ports("")}, want: "NodePorts"},
		{spec: ports(", hostIP: 127.0.0.1"), others: []string{ports(", hostIP: 127.0.0.2")}},
		{spec: ports(", protocol: UDP"), others: []string{ports("")}},
		{spec: "nodeSelector: {disk: ssd}"},
		{spec: "nodeSelector: {disk: tape}", want: "NodeAffinity"},
		{spec: "nodeSelector: {kubernetes.io/os: windows}", want: "PodOSSelectorNodeLabelDoesNotMatch"},
		{spec: affinity("{key: disk, operator: In, values: [ssd, nvme]}, {key: size, operator: Gt, values: ['4']}")},
		{spec: affinity("{key: size, operator: Lt, values: ['4']}"), want: "NodeAffinity"},
		{spec: affinity("{key: disk, operator: DoesNotExist}"), want: "NodeAffinity"},
		{spec: "securityContext: {sysctls: [{name: net.ipv4.tcp_syncookies, value: '1'}]}"},
		{spec: "hostNetwork: true\n  securityContext: {sysctls: [{name: net.ipv4.tcp_syncookies, value: '1'}]}", want: "SysctlForbidden"},
		{spec: "securityContext: {sysctls: [{name: kernel.msgmax, value: '1'}]}", want: "SysctlForbidden"},
		{spec: "securityContext: {sysctls: [{name: kernel/msgmax, value: '1'}]}", edit: func(n *AdmissionInput) { n.UnsafeSysctls = []string{"kernel.msg*"} }},
		{spec: "containers: [{name: a, image: i, securityContext: {privileged: true}}]", edit: func(n *AdmissionInput) { n.NoPrivileged = true }, want: "PrivilegedForbidden"},
		{spec: "containers: [{name: a, image: i, securityContext: {procMount: Unmasked}}]", want: "ProcMountForbidden"},
		{spec: "securityContext: {supplementalGroupsPolicy: Strict}", want: "SupplementalGroupsPolicyNotSupported"},
		{spec: "hostIPC: false", edit: func(n *AdmissionInput) { n.Pressure = []v1.NodeConditionType{v1.NodeMemoryPressure} }, want: "Evicted"},
		{spec: "tolerations: [{key: node.kubernetes.io/memory-pressure, operator: Exists}]", edit: func(n *AdmissionInput) { n.Pressure = []v1.NodeConditionType{v1.NodeMemoryPressure} }},
		{spec: with("cpu: 1"), edit: func(n *AdmissionInput) { n.Pressure = []v1.NodeConditionType{v1.NodeMemoryPressure} }},
		{spec: with("cpu: 1"), edit: func(n *AdmissionInput) { n.Pressure = []v1.NodeConditionType{v1.NodeDiskPressure} }, want: "Evicted"},
	} {
		n := testNode()
		if test.edit != nil {
			test.edit(n)
		}
		var others []*v1.Pod
		for _, spec := range test.others {
			others = append(others, pod(t, "other", spec))
		}
		v, victims := CheckAdmission(pod(t, "new", test.spec), others, n)
		got := ""
		if v != nil {
			got = v.Reason
		}
		if got != test.want || len(victims) > 0 {
			t.Errorf("%s beside %q: %q, want %q; victims %v", test.spec, test.others, got, test.want, victims)
		}
	}
}

// A critical pod preempts the pods of the lowest class and priority, as few as possible, and
// no critical ones.
func TestPreemption(t *testing.T) {
	effort := pod(t, "effort", "hostIPC: false")
	small, large := pod(t, "small", with("cpu: 500m")), pod(t, "large", with("cpu: 1"))
	high := pod(t, "high", "priority: 1000\n  "+with("cpu: 500m"))
	guaranteed := pod(t, "guaranteed", "containers: [{name: a, image: i, resources: {limits: {cpu: 500m, memory: 1Mi}}}]")
	vital := pod(t, "vital", "priorityClassName: system-cluster-critical\n  "+with("cpu: 2"))
	names := func(pods []*v1.Pod) string {
		var list []string
		for _, p := range pods {
			list = append(list, p.Name)
		}
		return strings.Join(list, " ")
	}
	for _, test := range []struct {
		wants  string
		others []*v1.Pod
		want   string
		ok     bool
	}{
		{"cpu: 1", []*v1.Pod{effort, small, large}, "large", true},
		{"cpu: 1", []*v1.Pod{high, small, large}, "large", true},
		{"cpu: 1500m", []*v1.Pod{high, small, large}, "small large", true},
		{"cpu: 2", []*v1.Pod{high, guaranteed, large}, "high guaranteed large", true},
		{"cpu: 500m", []*v1.Pod{high, guaranteed, large}, "large", true},
		{"cpu: 1", []*v1.Pod{vital, effort}, "", false},
		{"memory: 1Mi", []*v1.Pod{effort, small, large, vital}, "effort", true}, // there are too many pods
	} {
		v, victims := CheckAdmission(pod(t, "new", "priorityClassName: system-node-critical\n  "+with(test.wants)), test.others, testNode())
		same := len(strings.Fields(test.want)) == len(victims)
		for _, name := range strings.Fields(test.want) {
			same = same && strings.Contains(names(victims), name)
		}
		if (v == nil) != test.ok || !same {
			t.Errorf("%s beside %s: %v, %s; want %s", test.wants, names(test.others), v, names(victims), test.want)
		}
	}
}

func TestAllocatable(t *testing.T) {
	list := func(text ...string) v1.ResourceList {
		l := v1.ResourceList{}
		for i := 0; i < len(text); i += 2 {
			l[v1.ResourceName(text[i])] = resource.MustParse(text[i+1])
		}
		return l
	}
	for _, test := range []struct {
		capacity v1.ResourceList
		reserved []v1.ResourceList
		want     v1.ResourceList
	}{
		{list("cpu", "2", "memory", "1Gi"), []v1.ResourceList{list("cpu", "250m"), list("memory", "100Mi", "pods", "1")}, list("cpu", "1750m", "memory", "924Mi")},
		{list("memory", "1Gi", "hugepages-2Mi", "24Mi"), []v1.ResourceList{list("memory", "500Mi"), Pooled(list("hugepages-2Mi", "20Mi", "hugepages-32Mi", "4Mi"))}, list("memory", "500Mi", "hugepages-2Mi", "24Mi")},
		{list("cpu", "2"), []v1.ResourceList{list("cpu", "3")}, list("cpu", "0")},
	} {
		if got := Allocatable(test.capacity, test.reserved...); !equality.Semantic.DeepEqual(got, test.want) {
			t.Errorf("%v without %v is %v, want %v", test.capacity, test.reserved, got, test.want)
		}
	}
}
