package kubelet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	defaults "k8s.io/kubernetes/pkg/apis/core/v1"
	podqos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/kubernetes/pkg/kubelet/qos"
)

// randomPods is the number of random pods, which are made from the seed in SEED or defaultSeed.
const (
	randomPods  = 60
	defaultSeed = 5
)

// The agent handles random pods as the kubelet's own functions do: defaults, QoS class, OOM scores,
// and cgroup values, both in the requests to the runtime and in the kernel.
func TestRandomPods(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it runs containers")
	}
	if slowness > 1 {
		t.Skip("in a hundredth of an emulated CPU, which is what these pods have, containers do not start in time")
	}
	seed := uint64(defaultSeed)
	if s := os.Getenv("SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		check(t, err)
	}
	t.Logf("the pods are those of SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, seed))
	var list []manifest
	given := map[string]*v1.Pod{}
	for i := range randomPods {
		pod := randomPod(random, fmt.Sprintf("random-%d", i))
		given[pod.Name] = pod
		list = append(list, manifest{name: pod.Name, text: manifestOf(t, pod), until: "phase Running"})
	}
	n := startNode(t, "agent")
	n.look = func(pod *v1.Pod) {
		if given[pod.Name] == nil || !reached("phase Running", &pod.Status) {
			t.Errorf("a pod is %s", text(comparedStatus(pod.Status)))
			return
		}
		want := given[pod.Name].DeepCopy()
		defaults.SetObjectDefaults_Pod(want)
		comparePod(t, want, pod)
		if want.Spec.Resources == nil { // TestSamePods covers the effect of pod-level resources on the pod's cgroup
			n.comparePodCgroup(t, want, pod)
		}
	}
	s := drive(t, n, list)
	for _, line := range s.Missed {
		t.Error(line)
	}
	containers := 0
	capacity := memoryCapacity(t)
	for _, c := range s.Calls {
		if c.Method != "CreateContainer" {
			continue
		}
		var req struct {
			Config struct {
				Metadata struct{ Name string }
				Linux    struct{ Resources map[string]any }
			}
			SandboxConfig struct {
				Metadata struct{ Name string }
			} `json:"sandbox_config"`
		}
		check(t, json.Unmarshal(c.Request, &req))
		pod := given[req.SandboxConfig.Metadata.Name].DeepCopy()
		defaults.SetObjectDefaults_Pod(pod)
		for _, spec := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if spec.Name == req.Config.Metadata.Name {
				containers++
				compareContainer(t, pod, &spec, capacity, req.Config.Linux.Resources)
			}
		}
	}
	t.Logf("%d random pods with %d containers", len(list), containers)
	if containers < randomPods {
		t.Errorf("only %d containers were compared", containers)
	}
}

// otherDefaults has the fields whose defaults differ from the kubelet's, with the reasons.
var otherDefaults = map[string]string{
	`schedulerName`:                             "there is no scheduler",
	`enableServiceLinks`:                        "there are no services",
	`(init)?[cC]ontainers\[\w+\]\.resizePolicy`: "the API server fills it in, where there is one",
}

func comparePod(t *testing.T, want, got *v1.Pod) {
	// Fields that depend on the node, not on the manifest.
	want.Spec.NodeName, got.Spec.Tolerations = nodeName, nil
	differ("", plain(t, want.Spec), plain(t, got.Spec), func(path, a, b string) {
		for meant := range otherDefaults {
			if regexp.MustCompile("^(" + meant + ")$").MatchString(path) {
				return
			}
		}
		t.Errorf("%s: spec.%s is %s by the agent's defaults, %s by the kubelet's", want.Name, path, b, a)
	})
	if class := podqos.ComputePodQOS(want); class != got.Status.QOSClass {
		t.Errorf("%s is %s, by the kubelet %s", want.Name, got.Status.QOSClass, class)
	}
}

func plain(t *testing.T, v any) any {
	data, err := json.Marshal(v)
	check(t, err)
	var tree any
	check(t, json.Unmarshal(data, &tree))
	return tree
}

// compareContainer compares the resources in the request. In CRI 0 means no limit, and JSON omits
// it.
func compareContainer(t *testing.T, pod *v1.Pod, c *v1.Container, capacity int64, got map[string]any) {
	want := map[string]int64{"oom_score_adj": int64(qos.GetContainerOOMScoreAdjust(pod, c, capacity))}
	if pod.Spec.Resources == nil {
		request, limit := c.Resources.Requests.Cpu(), c.Resources.Limits.Cpu()
		want["cpu_period"] = cm.QuotaPeriod
		want["cpu_shares"] = int64(cm.MilliCPUToShares(request.MilliValue()))
		want["cpu_quota"] = cm.MilliCPUToQuota(limit.MilliValue(), cm.QuotaPeriod)
		want["memory_limit_in_bytes"] = c.Resources.Limits.Memory().Value()
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		value, _ := strconv.ParseInt(fmt.Sprint(got[name]), 10, 64) // a missing value is 0
		if value != want[name] {
			t.Errorf("%s: %s of %s is %d, by the kubelet %d", pod.Name, name, c.Name, value, want[name])
		}
	}
}

// comparePodCgroup compares the values of the pod's cgroup.
func (n *node) comparePodCgroup(t *testing.T, want, got *v1.Pod) {
	r := cm.ResourceConfigForPod(want, true, cm.QuotaPeriod, false, kubeletconfig.NoneMemoryReservationPolicy)
	class := map[v1.PodQOSClass]string{v1.PodQOSBurstable: "burstable", v1.PodQOSBestEffort: "besteffort"}[got.Status.QOSClass]
	names := []string{"kubepods", class, "pod" + string(got.UID)}
	dir := n.parent(slices.DeleteFunc(names, func(name string) bool { return name == "" })...)
	values := map[string]string{}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		values["memory.max"] = "max"
		values["cpu.max"] = fmt.Sprintf("max %d", cm.QuotaPeriod)
		values["cpu.weight"] = fmt.Sprint(cgroups.ConvertCPUSharesToCgroupV2Value(*r.CPUShares))
		if r.Memory != nil {
			values["memory.max"] = fmt.Sprint(pages(*r.Memory))
		}
		if r.CPUQuota != nil {
			values["cpu.max"] = fmt.Sprintf("%d %d", *r.CPUQuota, *r.CPUPeriod)
		}
	} else {
		values["cpu/cpu.shares"] = fmt.Sprint(*r.CPUShares)
		values["cpu/cpu.cfs_quota_us"] = "-1"
		if r.CPUQuota != nil {
			values["cpu/cpu.cfs_quota_us"] = fmt.Sprint(*r.CPUQuota)
		}
		if r.Memory != nil {
			values["memory/memory.limit_in_bytes"] = fmt.Sprint(pages(*r.Memory))
		}
	}
	for name, value := range values {
		controller, file := filepath.Split(name)
		data, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", controller, dir, file))
		if err != nil {
			t.Errorf("%s: %v", want.Name, err)
		} else if text := strings.TrimSpace(string(data)); text != value {
			t.Errorf("%s (%s): %s of the pod's cgroup is %s, by the kubelet %s", want.Name, got.Status.QOSClass, name, text, value)
		}
	}
}

// pages returns a memory limit as the kernel stores it, rounded down to pages.
func pages(bytes int64) int64 { return bytes &^ int64(os.Getpagesize()-1) }

// memoryCapacity returns the node's memory as the kubelet reports it, in bytes.
func memoryCapacity(t *testing.T) int64 {
	data, err := os.ReadFile("/proc/meminfo")
	check(t, err)
	var kib int64
	_, err = fmt.Fscanf(bytes.NewReader(data), "MemTotal: %d kB", &kib)
	check(t, err)
	return kib << 10
}

// manifestOf returns the pod as JSON, which is also YAML.
func manifestOf(t *testing.T, pod *v1.Pod) string {
	tree := plain(t, pod).(map[string]any)
	delete(tree, "status")
	delete(tree["metadata"].(map[string]any), "creationTimestamp")
	data, err := json.Marshal(tree)
	check(t, err)
	return string(data)
}

func randomPod(r *rand.Rand, name string) *v1.Pod {
	pod := &v1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	spec := &pod.Spec
	spec.TerminationGracePeriodSeconds = new(int64(r.IntN(3) + 1))
	spec.RestartPolicy = pick(r, "", v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever)
	spec.DNSPolicy = pick(r, "", v1.DNSDefault, v1.DNSClusterFirst)
	spec.PriorityClassName = pick(r, "", "", "", "system-node-critical")
	if spec.PriorityClassName != "" {
		spec.Priority = new(int32(2000001000))
	}
	if r.IntN(3) == 0 {
		spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: new(int64(1000))}
	}
	guaranteed := r.IntN(4) == 0
	for i := range 1 + r.IntN(3) {
		spec.Containers = append(spec.Containers, randomContainer(r, fmt.Sprintf("c%d", i), guaranteed))
	}
	for i := range r.IntN(3) {
		c := randomContainer(r, fmt.Sprintf("i%d", i), guaranteed)
		if c.Args = []string{"print", "ready"}; r.IntN(2) == 0 {
			c.Args, c.RestartPolicy = []string{"catch", "sleep", "for-ever"}, new(v1.ContainerRestartPolicyAlways)
		} else {
			c.ReadinessProbe, c.LivenessProbe = nil, nil
		}
		spec.InitContainers = append(spec.InitContainers, c)
	}
	if r.IntN(6) == 0 {
		spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse("2Gi")}}
	}
	if r.IntN(2) == 0 {
		spec.Volumes = []v1.Volume{
			{Name: "a"}, // emptyDir is the default
			{Name: "b", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/proc"}}},
			{Name: "c", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{{Path: "name", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}}},
		}
		spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "a", MountPath: "/a"}, {Name: "c", MountPath: "/c", ReadOnly: true}}
	}
	return pod
}

func randomContainer(r *rand.Rand, name string, guaranteed bool) v1.Container {
	c := v1.Container{Name: name, Image: testImage, ImagePullPolicy: pick(r, v1.PullNever, v1.PullIfNotPresent), Args: []string{"catch", "sleep", "for-ever"}}
	requests, limits := v1.ResourceList{}, v1.ResourceList{}
	cpu, memory := resource.NewMilliQuantity(int64(1+r.IntN(25)), resource.DecimalSI), resource.NewQuantity(int64(16+r.IntN(200))<<20, resource.BinarySI)
	switch {
	case guaranteed:
		limits[v1.ResourceCPU], limits[v1.ResourceMemory] = *cpu, *memory
	default:
		if r.IntN(2) == 0 {
			requests[v1.ResourceCPU] = *cpu
		}
		if r.IntN(2) == 0 {
			requests[v1.ResourceMemory] = *memory
		}
		if r.IntN(3) == 0 {
			limits[v1.ResourceCPU] = *resource.NewMilliQuantity(int64(25+r.IntN(3000)), resource.DecimalSI)
		}
		if r.IntN(3) == 0 {
			limits[v1.ResourceMemory] = *resource.NewQuantity(memory.Value()+int64(r.IntN(4096)), resource.BinarySI)
		}
		// A limit without a request becomes the request, which must fit on the machine.
		if l, ok := limits[v1.ResourceCPU]; ok && l.MilliValue() > 60 && requests.Cpu().IsZero() {
			requests[v1.ResourceCPU] = *cpu
		}
	}
	c.Resources = v1.ResourceRequirements{Requests: requests, Limits: limits}
	if r.IntN(3) == 0 {
		c.Ports = []v1.ContainerPort{{ContainerPort: int32(1000 + r.IntN(1000))}}
	}
	if r.IntN(4) == 0 {
		c.ReadinessProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"/testbin", "print", "ok"}}}}
	}
	if r.IntN(4) == 0 {
		c.LivenessProbe = &v1.Probe{InitialDelaySeconds: 100, ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(80)}}}
	}
	if r.IntN(3) == 0 {
		c.Env = []v1.EnvVar{
			{Name: "NAME", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
			{Name: "CPU", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.cpu"}}},
		}
	}
	if r.IntN(4) == 0 {
		c.SecurityContext = &v1.SecurityContext{ReadOnlyRootFilesystem: new(true)}
	}
	c.TerminationMessagePolicy = pick(r, "", v1.TerminationMessageFallbackToLogsOnError)
	return c
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }
