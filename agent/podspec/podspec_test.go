package podspec

import (
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// input returns the input for a pod with this spec.
func input(t *testing.T, spec string) *Input {
	t.Helper()
	pod := parsed(t, spec)
	return &Input{
		Node: Node{
			Agent: "0123456789ab", SeccompDir: "/agent/seccomp", SeccompDefault: true, IPs: []string{"192.0.2.1"},
			Kernel: Kernel{Memory: 16 << 30, Swap: true, HugePages: []string{"2MB"}},
			Allocatable: v1.ResourceList{
				v1.ResourceCPU: resource.MustParse("1750m"), v1.ResourceMemory: resource.MustParse("14Gi"),
				v1.ResourceEphemeralStorage: resource.MustParse("90Gi"), v1.ResourceHugePagesPrefix + "2Mi": resource.MustParse("1Gi"),
			},
		},
		Pod: pod, Dir: "/agent/pods/" + string(pod.UID), LogDir: "/agent/logs/default_web_" + string(pod.UID),
		UserNamespace: &cri.UserNamespace{Mode: cri.NamespaceMode_NODE},
		DNS: NodeDNS{Path: "/etc/resolv.conf", Own: &cri.DNSConfig{
			Servers: []string{"192.0.2.53"}, Searches: []string{"a.example", "b.example"}, Options: []string{"ndots:2", "rotate"},
		}},
		IPs: []string{"10.0.0.2", "fd00::2"},
	}
}

// parsed makes the pod of a manifest whose spec is given.
func parsed(t *testing.T, spec string) *v1.Pod {
	t.Helper()
	objects, _, err := manifest.Read("web.yaml", []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {app: w}, annotations: {note: hi}}\nspec:\n"+spec), manifest.Options{NodeName: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	return objects[0].(*v1.Pod)
}

func TestOOMScore(t *testing.T) {
	for resources, want := range map[string]int64{
		"{}":                                1000,
		"{limits: {cpu: 1, memory: 1Gi}}":   -997,
		"{requests: {memory: 8Gi}}":         500,
		"{requests: {memory: 1Ki}}":         999,
		"{requests: {memory: 1Ti}}":         3,
		"{limits: {cpu: 1}}":                999,
		"{requests: {cpu: 1, memory: 4Gi}}": 750,
	} {
		pod := parsed(t, "  containers: [{name: a, image: i, resources: "+resources+"}]\n")
		if got := oomScoreAdj(pod, &pod.Spec.Containers[0], 16<<30); got != want {
			t.Errorf("%s: %d, want %d", resources, got, want)
		}
	}
}

func TestNonRoot(t *testing.T) {
	root, user := &cri.Int64Value{Value: 0}, &cri.Int64Value{Value: 5}
	for _, test := range []struct {
		name, context string
		image         *cri.Image
		want          string
	}{
		{"not asked for", "{}", &cri.Image{Uid: root}, ""},
		{"image of a user", "{runAsNonRoot: true}", &cri.Image{Uid: user}, ""},
		{"image of root", "{runAsNonRoot: true}", &cri.Image{Uid: root}, "runs as root"},
		{"image without a user", "{runAsNonRoot: true}", &cri.Image{}, "runs as root"},
		{"image of a name", "{runAsNonRoot: true}", &cri.Image{Username: "www"}, `names the user "www"`},
		{"set to root", "{runAsNonRoot: true, runAsUser: 0}", &cri.Image{Uid: user}, "runAsUser is 0"},
		{"set to a user", "{runAsNonRoot: true, runAsUser: 4}", &cri.Image{Uid: root}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := parsed(t, "  containers: [{name: a, image: i, securityContext: "+test.context+"}]\n")
			err := verifyNonRoot(pod, &pod.Spec.Containers[0], test.image)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "x", "B_2": "$(A)"}
	for in, want := range map[string]string{
		"": "", "plain": "plain", "$(A)": "x", "a$(A)b$(A)": "axbx", "$(NO)": "$(NO)", "$$(A)": "$(A)", "$$$(A)": "$x",
		"$": "$", "$A": "$A", "$(A": "$(A", "$()": "$()", "$(B_2)": "$(A)", "100$": "100$", "$$": "$", "$($(A))": "$($(A))", "(A)": "(A)",
	} {
		got := Expand(in, func(name string) (string, bool) { v, ok := vars[name]; return v, ok })
		if got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// A container's grace period and hook are kept with it, even when its pod is unknown.
func TestReadBack(t *testing.T) {
	in := input(t, "  terminationGracePeriodSeconds: 5\n  containers: [{name: a, image: i, ports: [{containerPort: 80}], lifecycle: {preStop: {sleep: {seconds: 3}}}}]\n")
	config, err := in.Container(&Container{Spec: &in.Pod.Spec.Containers[0], Backoff: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if got := GraceOf(config.Annotations); got != 5*time.Second {
		t.Errorf("grace period %v", got)
	}
	if got := BackoffOf(config.Annotations); got != 20*time.Second {
		t.Errorf("back-off %v", got)
	}
	pod, c := Restored(config.Labels, config.Annotations)
	if pod.UID != in.Pod.UID || pod.Name != "web" || pod.Namespace != "default" || c.Name != "a" || len(c.Ports) != 1 || c.Lifecycle.PreStop.Sleep.Seconds != 3 {
		t.Errorf("pod %+v, container %+v", pod.ObjectMeta, c)
	}
}
