package criruntime

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

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/test/testenv"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

func driver(t *testing.T) *Driver {
	t.Helper()
	root := t.TempDir()
	resolv := filepath.Join(root, "resolv.conf")
	if err := os.WriteFile(resolv, []byte("search a.example b.example\nnameserver 192.0.2.53\noptions ndots:2 rotate\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	d := New(withParts(Options{
		Root: root, Files: files(t, root), Host: host{ips: []string{"192.0.2.1"}},
		ResolvConf: resolv, SeccompDefault: true, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}))
	d.kernel = podspec.Kernel{Memory: 16 << 30, Swap: true, HugePages: []string{"2MB"}}
	return d
}

// A host has the given properties.
type host struct {
	unknown
	ips, handlers []string
}

func (h host) IPs() []string      { return h.ips }
func (h host) Handlers() []string { return h.handlers }

// files opens the store of the pods' files below root.
func files(t *testing.T, root string) *podfiles.Store {
	t.Helper()
	s, err := podfiles.Open(podfiles.Options{Root: root, LogDir: filepath.Join(root, "logs"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// again returns the driver of the next agent.
func again(t *testing.T, d *Driver) *Driver {
	t.Helper()
	o := d.o
	o.Files = files(t, o.Root)
	return New(o)
}

// read makes a pod with this spec.
func read(t *testing.T, spec string) *v1.Pod {
	t.Helper()
	objects, _, err := manifest.Read("web.yaml", []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {app: w}, annotations: {note: hi}}\nspec:\n"+spec), manifest.Options{NodeName: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	return objects[0].(*v1.Pod)
}

// The next agent finds the files of a pod, and removes all of them.
func TestFiles(t *testing.T) {
	d := driver(t)
	pod := read(t, "  containers: [{name: a, image: i}]\n  volumes: [{name: e, emptyDir: {}}]\n")
	uid, key := string(pod.UID), podsync.KeyOf(pod)
	for range 2 { // as after a failed start of the sandbox
		if err := d.makeFiles(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(d.volumes.Path(pod, &pod.Spec.Volumes[0]))
	if err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("emptyDir: %v, %v", info, err)
	}
	if err := os.MkdirAll(filepath.Join(filepath.Join(d.o.Root, "pods"), "half-made"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Join(d.o.Root, "pods"), "half-made", ".pod.json.1.tmp"), nil, 0o600); err != nil {
		t.Fatal(err)
	}

	next := again(t, d)
	if got := next.files.Of(key); !slices.Equal(got, []string{uid}) {
		t.Errorf("found %v, want %s", got, uid)
	}
	if got := next.files.Accepted(); len(got) != 1 || got[0].UID != pod.UID {
		t.Errorf("accepted %v", got)
	}
	if err := next.forgetFiles(uid); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Join(d.o.Root, "pods"), filepath.Join(d.o.Root, "logs")} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("%s has %v, %v", dir, entries, err)
		}
	}
	if got := next.files.Of(key); got != nil {
		t.Errorf("still has the files of %v", got)
	}
	if err := next.forgetFiles(uid); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// releases records which pods release their resources.
type releases struct {
	noContainerManager
	released []string
}

func (r *releases) Release(uid string) error {
	r.released = append(r.released, uid)
	return nil
}

// A finished pod releases its volumes and other resources of this node, but keeps its status and
// logs. This can be repeated, also by the next agent. A pod that starts again gets its volumes
// again.
func TestFinishedPodKeepsNoVolumes(t *testing.T) {
	d := driver(t)
	containers := &releases{}
	d.o.ContainerManager = containers
	pod := read(t, "  containers: [{name: a, image: i}]\n  volumes: [{name: e, emptyDir: {}}]\n")
	uid := string(pod.UID)
	disk := d.volumes.Path(pod, &pod.Spec.Volumes[0])
	if err := d.makeFiles(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if err := d.files.SaveStatus(pod, &v1.PodStatus{Phase: v1.PodSucceeded}); err != nil {
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
	if _, err := os.Stat(disk); !errors.Is(err, fs.ErrNotExist) || !d.Clean(pod.UID) || !slices.Equal(containers.released, []string{uid, uid}) {
		t.Errorf("volume: %v, clean %v, released %v", err, d.Clean(pod.UID), containers.released)
	}
	if _, err := os.Stat(d.files.LogDir(pod)); err != nil || d.files.LoadStatus(pod) == nil || len(d.files.Accepted()) != 1 {
		t.Errorf("logs: %v, status %v, %d pods", err, d.files.LoadStatus(pod), len(d.files.Accepted()))
	}
	if again(t, d).Clean(pod.UID) {
		t.Error("the next agent does not look")
	}
	if err := d.makeFiles(t.Context(), pod); err != nil || d.Clean(pod.UID) {
		t.Errorf("again: %v, clean %v", err, d.Clean(pod.UID))
	}
	if _, err := os.Stat(disk); err != nil {
		t.Error(err)
	}
}

// A directory that the agent cannot identify stays: it may be the kubelet's, or the disk may have
// returned an error. Once it is readable it belongs to the pod again.
func TestUnknownFilesStay(t *testing.T) {
	d := driver(t)
	pod := read(t, "  containers: [{name: a, image: i}]\n  volumes: [{name: e, emptyDir: {}}]\n")
	if err := d.makeFiles(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(d.volumes.Path(pod, &pod.Spec.Volumes[0]), "data")
	kubelets := filepath.Join(filepath.Join(d.o.Root, "pods"), "4a5d7f0c", "volumes", "kubernetes.io~empty-dir", "v", "data")
	if err := os.MkdirAll(filepath.Dir(kubelets), 0o750); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{data, kubelets} {
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	record := filepath.Join(d.files.Dir(string(pod.UID)), "pod.json")
	accepted, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	start := func() *Driver {
		next := again(t, d)
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
	if got := start().files.Accepted(); len(got) != 0 {
		t.Errorf("accepted %v", got)
	}
	if err := os.WriteFile(record, accepted, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := start().files.Accepted(); len(got) != 1 || got[0].UID != pod.UID {
		t.Errorf("accepted %v", got)
	}
}

// A volume in memory is mounted once and goes with its pod; other programs' mounts in a pod's
// directory are not removed.
func TestMemoryVolume(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	d := driver(t)
	pod := read(t, "  containers: [{name: a, image: i}]\n  volumes: [{name: m, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]\n")
	uid := string(pod.UID)
	mounted := func() int {
		data, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(data), d.files.Dir(uid))
	}
	t.Cleanup(func() {
		if n := mounted(); n > 0 {
			t.Errorf("%d mounts are left", n)
		}
	})
	for range 2 {
		if err := d.makeFiles(t.Context(), pod); err != nil {
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
	other := filepath.Join(d.files.Dir(uid), "other")
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
