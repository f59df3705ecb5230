package workload_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	nodes "github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/probe"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/apiserver/workload"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"
)

// odd has values that are invalid in most fields.
var odd = []any{nil, "", "../x", "a\nb", -1, 0, 1 << 40, 65536, true, []any{}, []any{nil}, map[string]any{}, map[string]any{"x": "../x"}}

// oddities returns the number of variants of x that with can make.
func oddities(x any) int {
	n := len(odd)
	switch x := x.(type) {
	case map[string]any:
		for _, value := range x {
			n += oddities(value)
		}
	case []any:
		n++ // the whole list twice
		for _, value := range x {
			n += oddities(value)
		}
	}
	return n
}

// with returns variant n of x: one value in it is replaced by an odd one, or a list is doubled.
func with(x any, n int) any {
	if n < len(odd) {
		return odd[n]
	}
	n -= len(odd)
	switch x := x.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(x)) {
			if of := oddities(x[key]); n >= of {
				n -= of
				continue
			}
			x = maps.Clone(x)
			x[key] = with(x[key], n)
			return x
		}
	case []any:
		if n == 0 {
			return append(slices.Clone(x), x...)
		}
		n--
		for i := range x {
			if of := oddities(x[i]); n >= of {
				n -= of
				continue
			}
			x = slices.Clone(x)
			x[i] = with(x[i], n)
			return x
		}
	}
	return x
}

// FuzzAccepted reads invalid manifests as if an earlier release had accepted them, and checks that
// the result has what the agent relies on. text is a manifest, nth a variant of it.
func FuzzAccepted(f *testing.F) {
	paths, err := filepath.Glob("../../test/kubelet/testdata/verdicts/*.yaml")
	if err != nil || len(paths) == 0 {
		f.Fatal(paths, err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		var tree any
		if err := yaml.Unmarshal(data, &tree); err != nil {
			f.Fatal(err)
		}
		for n := 0; n < oddities(tree); n += 29 {
			f.Add(data, uint(n))
		}
	}
	o := manifest.Options{NodeName: "n1", Source: manifest.SourceAPI}
	accepted := o
	accepted.Accepted = true
	f.Fuzz(func(t *testing.T, text []byte, nth uint) {
		var tree any
		if yaml.Unmarshal(text, &tree) == nil {
			if text, err = json.Marshal(with(tree, int(nth)%oddities(tree))); err != nil {
				t.Fatal(err)
			}
		}
		objects, _, err := manifest.Read("f.yaml", text, accepted)
		if valid, _, rejected := manifest.Read("f.yaml", text, o); rejected == nil && (err != nil || len(valid) != len(objects)) {
			t.Fatalf("what is valid is not accepted: %v", err)
		}
		for _, object := range objects {
			if err := validation.IsDNS1123Subdomain(object.GetName()); err != nil || object.GetDeletionTimestamp() != nil {
				t.Errorf("%s: %v", manifest.Key(object), err)
			}
			if pod, ok := object.(*v1.Pod); ok {
				runPod(t, pod)
			} else if manifest.IsWorkload(object) {
				for _, pod := range workload.Expand(object, nil, time.Now()).Pods {
					runPod(t, pod)
				}
			}
		}
	})
}

// runPod passes the pod through the code that the agent runs before it calls the runtime.
func runPod(t *testing.T, pod *v1.Pod) {
	names := map[string]bool{}
	unique := func(name string) {
		if validation.IsDNS1123Label(name) != nil || names[name] {
			t.Errorf("a directory for %q", name)
		}
		names[name] = true
	}
	for c := range podsync.Containers(&pod.Spec) {
		unique(c.Name)
	}
	clear(names)
	for i := range pod.Spec.Volumes {
		unique(pod.Spec.Volumes[i].Name)
	}
	if len(pod.Spec.Containers) == 0 || len(pod.Spec.EphemeralContainers) > 0 || pod.Spec.TerminationGracePeriodSeconds == nil {
		t.Errorf("%+v", pod.Spec)
	}
	node := podspec.Node{Kernel: podspec.Kernel{Memory: 1 << 30, HugePages: []string{"2MB"}}, IPs: []string{"10.0.0.1"}}
	in := podspec.Input{Node: node, Pod: pod, Dir: "/d", LogDir: "/l"}
	nodes.CheckAdmission(pod, []*v1.Pod{pod}, &nodes.AdmissionInput{Name: "n1", Pods: noClass{}})
	status.Of(pod, podsync.Have{}, nil, status.Node{}, time.Now())
	podsync.Compute(pod, podsync.Have{}, time.Now())
	_, _, _ = in.Sandbox(0) // the agent reports errors as events of the pod
	in.MostMemory()
	for c := range podsync.Containers(&pod.Spec) {
		env, _ := in.Environment(c, podspec.References{})
		_, _ = in.Container(&podspec.Container{Spec: c, Env: env, Sources: make([]podspec.Source, len(c.VolumeMounts))})
		for _, code := range []int32{0, 1} {
			podsync.Restarts(&pod.Spec, c, code)
		}
		for _, p := range []*v1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			if p == nil {
				continue
			}
			if p.PeriodSeconds <= 0 {
				t.Errorf("a probe every %d s", p.PeriodSeconds)
			}
			if p.HTTPGet != nil {
				_, _ = probe.HTTPRequest(p.HTTPGet, c, "10.0.0.1", "probe")
			}
		}
	}
}

// noClass describes a node without RuntimeClasses.
type noClass struct{}

func (noClass) Handler(*v1.Pod) *cri.RuntimeHandlerFeatures { return nil }

func (noClass) Requests(pod *v1.Pod) v1.ResourceList { return podspec.Requests(pod, nil) }
