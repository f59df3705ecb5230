package podspec

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// input is what a pod with this spec is translated from.
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

func TestSandboxConfig(t *testing.T) {
	in := input(t, `
  hostname: front
  shareProcessNamespace: true
  dnsConfig: {nameservers: [192.0.2.54], options: [{name: ndots, value: "5"}]}
  securityContext: {runAsUser: 7, sysctls: [{name: net/ipv4/ip_forward, value: "1"}]}
  containers:
  - {name: a, image: "i:1", ports: [{containerPort: 80, hostPort: 8080, hostIP: 127.0.0.1}, {containerPort: 81}]}
`)
	pod := in.Pod
	got, _, err := in.Sandbox(3)
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range []struct {
		what      string
		got, want any
	}{
		{"hostname", got.Hostname, "front"},
		{"attempt", got.Metadata.Attempt, uint32(3)},
		{"log directory", got.LogDirectory, in.LogDir},
		{"name servers", got.DnsConfig.Servers, []string{"192.0.2.53", "192.0.2.54"}},
		{"searches", got.DnsConfig.Searches, []string{"a.example", "b.example"}},
		{"options", got.DnsConfig.Options, []string{"ndots:5", "rotate"}},
		{"port mappings", len(got.PortMappings), 2},
		{"host port", got.PortMappings[0].HostPort, int32(8080)},
		{"host IP", got.PortMappings[0].HostIp, "127.0.0.1"},
		{"PID namespace", got.Linux.SecurityContext.NamespaceOptions.Pid, cri.NamespaceMode_POD},
		{"sysctls", got.Linux.Sysctls, map[string]string{"net.ipv4.ip_forward": "1"}},
		{"user", got.Linux.SecurityContext.RunAsUser.Value, int64(7)},
		{"pod label", got.Labels["app"], "w"},
		{"kubelet's label", got.Labels["io.kubernetes.pod.uid"], string(pod.UID)},
		{"source", got.Labels[LabelSource], "file"},
		{"pod annotation", got.Annotations["note"], "hi"},
		{"containers", got.Annotations[AnnotationContainers], "a"},
		{"cgroup parent", got.Linux.CgroupParent, ""},
	} {
		if diff := cmp.Diff(check.want, check.got); diff != "" {
			t.Errorf("%s: %s", check.what, diff)
		}
	}

	pod.Spec.HostNetwork = true
	if got, _, err = in.Sandbox(0); err != nil || got.Hostname != "" {
		t.Errorf("on the host's network: host name %q, %v", got.Hostname, err)
	}
}

func TestContainerConfig(t *testing.T) {
	in := input(t, `
  terminationGracePeriodSeconds: 5
  securityContext: {runAsUser: 7, runAsGroup: 8, supplementalGroups: [9]}
  containers:
  - name: a
    image: i:1
    command: [run, $(WHO), $$(WHO), $(NOBODY)]
    env:
    - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: WHO, value: "pod $(NAME)"}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}
    - {name: APP, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
    - {name: NAME, value: again}
    resources: {limits: {cpu: 500m, memory: 64Mi}, requests: {cpu: 250m}}
    securityContext: {runAsUser: 70, readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {add: [net_admin], drop: [CAP_CHOWN]}}
    volumeMounts: [{name: e, mountPath: /e, readOnly: true}, {name: h, mountPath: h, mountPropagation: HostToContainer}]
  volumes: [{name: e, emptyDir: {}}, {name: h, hostPath: {path: /srv}}]
`)
	c := &Container{
		Spec: &in.Pod.Spec.Containers[0], Attempt: 4, Backoff: 20 * time.Second, Image: &cri.Image{Id: "sha256:1"}, ImageRef: "sha256:1",
		Sources: []Source{{Path: in.Dir + "/e"}, {Path: "/srv"}}, HostsFile: in.Dir + "/etc-hosts", MessageFile: in.Dir + "/containers/a/1",
	}
	var err error
	if c.Env, err = in.Environment(c.Spec, References{}); err != nil {
		t.Fatal(err)
	}
	got, err := in.Container(c)
	if err != nil {
		t.Fatal(err)
	}
	var env []string
	for _, kv := range got.Envs {
		env = append(env, kv.Key+"="+string(kv.Value))
	}
	var mounts []string
	for _, m := range got.Mounts {
		mounts = append(mounts, strings.TrimPrefix(m.HostPath, in.Dir)+" "+m.ContainerPath+" "+m.Propagation.String())
	}
	r, sc := got.Linux.Resources, got.Linux.SecurityContext
	for _, check := range []struct {
		what      string
		got, want any
	}{
		{"image", got.Image.Image + " " + got.Image.UserSpecifiedImage, "sha256:1 i:1"},
		{"command", got.Command, []string{"run", "pod web", "$(WHO)", "$(NOBODY)"}},
		{"environment", env, []string{"WHO=pod web", "IP=10.0.0.2,fd00::2", "APP=w", "NAME=again"}},
		{"mounts", mounts, []string{
			"/e /e PROPAGATION_PRIVATE",
			"/srv /h PROPAGATION_HOST_TO_CONTAINER",
			"/etc-hosts /etc/hosts PROPAGATION_PRIVATE",
			"/containers/a/1 /dev/termination-log PROPAGATION_PRIVATE",
		}},
		{"read-only", got.Mounts[0].Readonly, true},
		{"log", got.LogPath, "a/4.log"},
		{"cpu", []int64{r.CpuShares, r.CpuQuota, r.CpuPeriod}, []int64{256, 50000, 100000}},
		{"memory", []int64{r.MemoryLimitInBytes, r.MemorySwapLimitInBytes}, []int64{64 << 20, 64 << 20}},
		{"OOM score", r.OomScoreAdj, int64(997)}, // 64 MiB of 16 GiB are 3.9 ‰
		{"user", []int64{sc.RunAsUser.Value, sc.RunAsGroup.Value}, []int64{70, 8}},
		{"groups", sc.SupplementalGroups, []int64{9}},
		{"capabilities", [][]string{sc.Capabilities.AddCapabilities, sc.Capabilities.DropCapabilities}, [][]string{{"net_admin"}, {"CAP_CHOWN"}}},
		{"seccomp", sc.Seccomp.ProfileType, cri.SecurityProfile_RuntimeDefault},
		{"no new privileges", sc.NoNewPrivs, true},
		{"read-only root", sc.ReadonlyRootfs, true},
		{"masked", slices.Contains(sc.MaskedPaths, "/proc/kcore"), true},
		{"PID namespace", sc.NamespaceOptions.Pid, cri.NamespaceMode_CONTAINER},
		{"grace, read back", GraceOf(got.Annotations), 5 * time.Second},
		{"back-off, read back", BackoffOf(got.Annotations), 20 * time.Second},
	} {
		if diff := cmp.Diff(check.want, check.got); diff != "" {
			t.Errorf("%s: %s", check.what, diff)
		}
	}
	if hosts := in.Hosts(nil); !strings.Contains(hosts, "10.0.0.2\tweb\n") {
		t.Errorf("hosts file: %q", hosts)
	}
}

// Mounts that are to be read-only all the way down are so, or not there at all,
// unless the pod takes what it can get.
func TestRecursiveReadOnly(t *testing.T) {
	for _, test := range []struct {
		wish string
		can  bool
		want string
	}{
		{"Enabled", true, "true"}, {"Enabled", false, `mount /h: the runtime's handler "" has no recursive read-only mounts`},
		{"IfPossible", true, "true"}, {"IfPossible", false, "false"}, {"Disabled", true, "false"},
	} {
		in := input(t, "  containers: [{name: a, image: i, volumeMounts: [{name: h, mountPath: /h, readOnly: true, recursiveReadOnly: "+test.wish+"}]}]\n  volumes: [{name: h, hostPath: {path: /srv}}]\n")
		in.RecursiveReadOnly = test.can
		config, err := in.Container(&Container{Spec: &in.Pod.Spec.Containers[0], Image: &cri.Image{Id: "sha256:1"}, Sources: []Source{{Path: "/srv"}}})
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = strconv.FormatBool(config.Mounts[0].RecursiveReadOnly)
		}
		if got != test.want {
			t.Errorf("%s, can %v: %s, want %s", test.wish, test.can, got, test.want)
		}
	}
}

func TestPrivileged(t *testing.T) {
	in := input(t, "  containers: [{name: a, image: i, securityContext: {privileged: true}}]\n")
	sandbox, _, err := in.Sandbox(0)
	if err != nil || !sandbox.Linux.SecurityContext.Privileged {
		t.Errorf("the sandbox is not privileged: %v", err)
	}
	sc, err := in.securityContext(&in.Pod.Spec.Containers[0], &cri.Image{}, &cri.NamespaceOption{})
	if err != nil || !sc.Privileged {
		t.Errorf("got %+v, %v", sc, err)
	}
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
		{"image of nobody in particular", "{runAsNonRoot: true}", &cri.Image{}, "runs as root"},
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
