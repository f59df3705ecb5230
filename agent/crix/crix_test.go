package crix

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func driver(t *testing.T) *Driver {
	t.Helper()
	root := t.TempDir()
	resolv := filepath.Join(root, "resolv.conf")
	if err := os.WriteFile(resolv, []byte("search a.example b.example\nnameserver 192.0.2.53\noptions ndots:2 rotate\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	d, err := New(Options{
		Root: root, LogDir: filepath.Join(root, "logs"), NodeName: "n1", NodeIPs: func() []string { return []string{"192.0.2.1"} },
		ResolvConf: resolv, SeccompDefault: true, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	d.Allocatable = func() v1.ResourceList {
		return v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("1750m"), v1.ResourceMemory: resource.MustParse("14Gi"),
			v1.ResourceEphemeralStorage: resource.MustParse("90Gi"), v1.ResourceHugePagesPrefix + "2Mi": resource.MustParse("1Gi"),
		}
	}
	d.node = facts{memory: 16 << 30, swap: true, hugePages: []string{"2MB"}, masked: maskedPaths}
	return d
}

// read makes the pod of a manifest whose spec is given.
func read(t *testing.T, spec string) *v1.Pod {
	t.Helper()
	objects, _, err := manifest.Read("web.yaml", []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {app: w}, annotations: {note: hi}}\nspec:\n"+spec), manifest.Options{NodeName: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	return objects[0].(*v1.Pod)
}

func TestSandboxConfig(t *testing.T) {
	d := driver(t)
	pod := read(t, `
  hostname: front
  shareProcessNamespace: true
  dnsConfig: {nameservers: [192.0.2.54], options: [{name: ndots, value: "5"}]}
  securityContext: {runAsUser: 7, sysctls: [{name: net/ipv4/ip_forward, value: "1"}]}
  containers:
  - {name: a, image: "i:1", ports: [{containerPort: 80, hostPort: 8080, hostIP: 127.0.0.1}, {containerPort: 81}]}
`)
	got, err := d.sandboxConfig(pod, 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range []struct {
		what      string
		got, want any
	}{
		{"hostname", got.Hostname, "front"},
		{"attempt", got.Metadata.Attempt, uint32(3)},
		{"log directory", got.LogDirectory, filepath.Join(d.LogDir, "default_web_"+string(pod.UID))},
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
	if got, err = d.sandboxConfig(pod, 0); err != nil || got.Hostname != "" {
		t.Errorf("on the host's network: host name %q, %v", got.Hostname, err)
	}
}

func TestContainerConfig(t *testing.T) {
	d := driver(t)
	pod := read(t, `
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
	if err := d.makeFiles(pod); err != nil {
		t.Fatal(err)
	}
	action := podsync.Action{Verb: podsync.StartContainer, Name: "a", Attempt: 4, Backoff: 20 * time.Second}
	got, err := d.containerConfig(pod, &pod.Spec.Containers[0], action, "sha256:1", &cri.Image{Id: "sha256:1"}, []string{"10.0.0.2", "fd00::2"})
	if err != nil {
		t.Fatal(err)
	}
	var env []string
	for _, kv := range got.Envs {
		env = append(env, kv.Key+"="+string(kv.Value))
	}
	var mounts []string
	for _, m := range got.Mounts {
		host := strings.TrimPrefix(m.HostPath, d.podDir(string(pod.UID)))
		if m.ContainerPath == "/dev/termination-log" {
			host = filepath.Dir(host) // its name is random
		}
		mounts = append(mounts, host+" "+m.ContainerPath+" "+m.Propagation.String())
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
			"/volumes/kubernetes.io~empty-dir/e /e PROPAGATION_PRIVATE",
			"/srv /h PROPAGATION_HOST_TO_CONTAINER",
			"/etc-hosts /etc/hosts PROPAGATION_PRIVATE",
			"/containers/a /dev/termination-log PROPAGATION_PRIVATE",
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
		{"grace, read back", graceOf(got.Annotations), 5 * time.Second},
		{"back-off, read back", backoffOf(got.Annotations), 20 * time.Second},
	} {
		if diff := cmp.Diff(check.want, check.got); diff != "" {
			t.Errorf("%s: %s", check.what, diff)
		}
	}
	hosts, err := os.ReadFile(d.hostsPath(string(pod.UID)))
	if err != nil || !strings.Contains(string(hosts), "10.0.0.2\tweb\n") {
		t.Errorf("hosts file: %q, %v", hosts, err)
	}
}

func TestPrivileged(t *testing.T) {
	d := driver(t)
	pod := read(t, "  containers: [{name: a, image: i, securityContext: {privileged: true}}]\n")
	sandbox, err := d.sandboxConfig(pod, 0)
	if err != nil || !sandbox.Linux.SecurityContext.Privileged {
		t.Errorf("the sandbox is not privileged: %v", err)
	}
	sc, err := d.securityContext(pod, &pod.Spec.Containers[0], &cri.Image{}, &cri.NamespaceOption{})
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
		pod := read(t, "  containers: [{name: a, image: i, resources: "+resources+"}]\n")
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
			pod := read(t, "  containers: [{name: a, image: i, securityContext: "+test.context+"}]\n")
			err := verifyNonRoot(pod, &pod.Spec.Containers[0], test.image)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestExpandVariables(t *testing.T) {
	vars := map[string]string{"A": "x", "B_2": "$(A)"}
	for in, want := range map[string]string{
		"": "", "plain": "plain", "$(A)": "x", "a$(A)b$(A)": "axbx", "$(NO)": "$(NO)", "$$(A)": "$(A)", "$$$(A)": "$x",
		"$": "$", "$A": "$A", "$(A": "$(A", "$()": "$()", "$(B_2)": "$(A)", "100$": "100$", "$$": "$", "$($(A))": "$($(A))", "(A)": "(A)",
	} {
		got := expandVariables(in, func(name string) (string, bool) { v, ok := vars[name]; return v, ok })
		if got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// The files of a pod are found by the next agent, and nothing of them stays.
func TestFiles(t *testing.T) {
	d := driver(t)
	pod := read(t, "  containers: [{name: a, image: i}]\n  volumes: [{name: e, emptyDir: {}}]\n")
	uid, key := string(pod.UID), podsync.KeyOf(pod)
	for range 2 { // as after a sandbox that did not start
		if err := d.makeFiles(pod); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(d.volumes.Path(pod, &pod.Spec.Volumes[0]))
	if err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("emptyDir: %v, %v", info, err)
	}
	if err := os.MkdirAll(filepath.Join(d.podsDir(), "half-made"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.podsDir(), "half-made", ".pod.json.1.tmp"), nil, 0o600); err != nil {
		t.Fatal(err)
	}

	next, err := New(d.Options)
	if err != nil {
		t.Fatal(err)
	}
	if got := next.filesOf(key); !slices.Equal(got, []string{uid}) {
		t.Errorf("found %v, want %s", got, uid)
	}
	if got := next.Accepted(); len(got) != 1 || got[0].UID != pod.UID {
		t.Errorf("accepted %v", got)
	}
	if err := next.forgetFiles(uid); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{next.podsDir(), next.LogDir} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("%s has %v, %v", dir, entries, err)
		}
	}
	if got := next.filesOf(key); got != nil {
		t.Errorf("still has the files of %v", got)
	}
	if err := next.forgetFiles(uid); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// The next agent knows which pods were being ended, and takes nothing of their statuses
// for that of a pod that is wanted again.
func TestEndIsNoted(t *testing.T) {
	d := driver(t)
	a, b := read(t, "  containers: [{name: a, image: i}]\n"), read(t, "  containers: [{name: b, image: i}]\n")
	for _, pod := range []*v1.Pod{a, b} {
		if err := d.SaveStatus(pod, &v1.PodStatus{Phase: v1.PodFailed}); err != nil {
			t.Fatal(err)
		}
	}
	have := podsync.Have{Files: d.filesOf(podsync.KeyOf(a))}
	for range 2 { // as in each round
		if got := d.MarkEnding(b, have); !slices.Equal(got, []string{string(a.UID)}) {
			t.Errorf("%v end, want %s", got, a.UID)
		}
	}
	next, err := New(d.Options)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []*Driver{d, next} {
		if !d.Ending(a.UID) || d.LoadStatus(a) != nil {
			t.Error("the pod that is not wanted goes on")
		}
		if d.Ending(b.UID) || d.LoadStatus(b) == nil {
			t.Error("the pod that is wanted is forgotten")
		}
	}
	if err := next.forgetFiles(string(a.UID)); err != nil {
		t.Fatal(err)
	}
	if next.Ending(a.UID) {
		t.Error("the pod that has ended does not end")
	}
}

// A pod that has finished gives back its volumes and what else it was given on this
// node. What is known of it stays, with its logs. It may be asked to twice, and by the
// next agent; what begins again has its volumes again.
func TestFinishedPodKeepsNoVolumes(t *testing.T) {
	d := driver(t)
	var released []string
	d.Release = func(uid string) error { released = append(released, uid); return nil }
	pod := read(t, "  containers: [{name: a, image: i}]\n  volumes: [{name: e, emptyDir: {}}]\n")
	uid := string(pod.UID)
	disk := d.volumes.Path(pod, &pod.Spec.Volumes[0])
	if err := d.makeFiles(pod); err != nil {
		t.Fatal(err)
	}
	if err := d.SaveStatus(pod, &v1.PodStatus{Phase: v1.PodSucceeded}); err != nil {
		t.Fatal(err)
	}
	if d.Clean(pod.UID) {
		t.Error("it holds nothing")
	}
	for range 2 {
		if err := d.Act(t.Context(), t.Context(), pod, podsync.Action{Verb: podsync.Release, UID: uid}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(disk); !errors.Is(err, fs.ErrNotExist) || !d.Clean(pod.UID) || !slices.Equal(released, []string{uid, uid}) {
		t.Errorf("volume: %v, clean %v, released %v", err, d.Clean(pod.UID), released)
	}
	if _, err := os.Stat(d.PodLogs(pod)); err != nil || d.LoadStatus(pod) == nil || len(d.Accepted()) != 1 {
		t.Errorf("logs: %v, status %v, %d pods", err, d.LoadStatus(pod), len(d.Accepted()))
	}
	if next, err := New(d.Options); err != nil || next.Clean(pod.UID) {
		t.Errorf("the next agent does not look: %v", err)
	}
	if err := d.makeFiles(pod); err != nil || d.Clean(pod.UID) {
		t.Errorf("again: %v, clean %v", err, d.Clean(pod.UID))
	}
	if _, err := os.Stat(disk); err != nil {
		t.Error(err)
	}
}

// What is in a directory that the agent knows nothing of stays: it may be the kubelet's,
// or the disk had a bad moment. When it can be read again it is the pod's.
func TestUnknownFilesStay(t *testing.T) {
	d := driver(t)
	pod := read(t, "  containers: [{name: a, image: i}]\n  volumes: [{name: e, emptyDir: {}}]\n")
	if err := d.makeFiles(pod); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(d.volumes.Path(pod, &pod.Spec.Volumes[0]), "data")
	kubelets := filepath.Join(d.podsDir(), "4a5d7f0c", "volumes", "kubernetes.io~empty-dir", "v", "data")
	if err := os.MkdirAll(filepath.Dir(kubelets), 0o750); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{data, kubelets} {
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	record := filepath.Join(d.podDir(string(pod.UID)), "pod.json")
	accepted, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	start := func() *Driver {
		next, err := New(d.Options)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{data, kubelets} {
			if got, err := os.ReadFile(path); string(got) != "precious" {
				t.Errorf("%s: %q, %v", path, got, err)
			}
		}
		return next
	}
	if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := start().Accepted(); len(got) != 0 {
		t.Errorf("accepted %v", got)
	}
	if err := os.WriteFile(record, accepted, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := start().Accepted(); len(got) != 1 || got[0].UID != pod.UID {
		t.Errorf("accepted %v", got)
	}
}

// A volume in memory is mounted once and goes with its pod; what somebody else
// has mounted in a pod's directory is not removed.
func TestMemoryVolume(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it mounts")
	}
	d := driver(t)
	pod := read(t, "  containers: [{name: a, image: i}]\n  volumes: [{name: m, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]\n")
	uid := string(pod.UID)
	mounted := func() int {
		data, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(data), d.podDir(uid))
	}
	t.Cleanup(func() {
		if n := mounted(); n > 0 {
			t.Errorf("%d mounts are left", n)
		}
	})
	for range 2 {
		if err := d.makeFiles(pod); err != nil {
			t.Fatal(err)
		}
	}
	if n := mounted(); n != 1 {
		t.Errorf("%d mounts, want 1", n)
	}
	full := make([]byte, 2<<20)
	if err := os.WriteFile(filepath.Join(d.volumes.Path(pod, &pod.Spec.Volumes[0]), "x"), full, 0o644); err == nil {
		t.Error("the volume takes more than its limit")
	}
	other := filepath.Join(d.podDir(uid), "other")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := mountTmpfs(other); err != nil {
		t.Fatal(err)
	}
	if err := d.forgetFiles(uid); err == nil || !strings.Contains(err.Error(), "still mounted") {
		t.Errorf("got %v, want a refusal", err)
	}
	if err := unmount(other); err != nil {
		t.Fatal(err)
	}
	if err := d.forgetFiles(uid); err != nil {
		t.Error(err)
	}
}

func mountTmpfs(path string) error { return unix.Mount("tmpfs", path, "tmpfs", 0, "") }
func unmount(path string) error    { return unix.Unmount(path, 0) }
