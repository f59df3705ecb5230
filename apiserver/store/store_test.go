package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/apiserver/store"
	"github.com/crisp-cri/crisp/internal/fault"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

func open(t *testing.T, dir string) *store.Store {
	t.Helper()
	return openWith(t, dir, nil)
}

type pods map[types.UID]*v1.Pod

func (p pods) Pod(uid types.UID) *v1.Pod { return p[uid] }

func (p pods) Last(key podsync.Key) *v1.Pod {
	for _, pod := range p {
		if podsync.KeyOf(pod) == key {
			return pod
		}
	}
	return nil
}

// openWith opens the store of an agent that has accepted these pods.
func openWith(t *testing.T, dir string, accepted map[types.UID]*v1.Pod) *store.Store {
	t.Helper()
	s, err := store.Open(dir, "n1", pods(accepted), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const web = `apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 7
  containers:
  - {name: app, image: "i:1"}
`

const config = `{apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {a: "1"}}`

func put(t *testing.T, s *store.Store, text string, o store.PutOptions, want store.Outcome) types.UID {
	t.Helper()
	object, got, _, err := s.Put([]byte(text), o)
	if err != nil || got != want {
		t.Fatalf("%v, %v; want %s", got, err, want)
	}
	return object.GetUID()
}

// After a restart the next apply can still remove fields from an object, even one that the last
// apply did not change.
func TestAppliedIsKept(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, config, store.PutOptions{}, store.Created)
	put(t, s, config, store.PutOptions{Applied: map[string]json.RawMessage{"m": []byte(`{"a":1}`)}}, store.Unchanged)
	put(t, s, config, store.PutOptions{Applied: map[string]json.RawMessage{"n": nil}, DryRun: true}, store.Unchanged)
	put(t, s, strings.Replace(config, `"1"`, `"2"`, 1), store.PutOptions{}, store.Configured)
	got := open(t, dir).Applied("configmap default/c")
	if len(got) != 1 || string(got["m"]) != `{"a":1}` {
		t.Errorf("applied is %s, want that of m", got)
	}
}

// Applied objects survive a SIGKILL: a Store is never closed.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	uid := put(t, s, web, store.PutOptions{}, store.Created)
	put(t, s, web, store.PutOptions{}, store.Unchanged)
	put(t, s, config, store.PutOptions{Create: true}, store.Created)
	put(t, s, "{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {p: geheim}}", store.PutOptions{}, store.Created)

	for _, same := range []string{
		strings.Replace(web, "i:1", "i:2", 1),
		strings.NewReplacer("i:1\"", "i:1\", args: [], env: []", "spec:", "spec:\n  nodeSelector: {}\n  enableServiceLinks: true").Replace(web), // as kubectl writes it
	} {
		if got := put(t, s, same, store.PutOptions{}, store.Configured); got != uid {
			t.Errorf("another pod was made of %s", same)
		}
	}
	s = open(t, dir)
	if got := put(t, s, strings.Replace(web, "name: app", "name: app2", 1), store.PutOptions{}, store.Replaced); got == uid {
		t.Errorf("another container made no other pod")
	}
	// A running container gets no devices.
	put(t, s, strings.Replace(web, "name: app", "name: app2, resources: {limits: {crisp.io/device=/dev/fuse: 1}}", 1), store.PutOptions{}, store.Replaced)
	put(t, s, strings.Replace(web, "name: app", "name: app2, resources: {limits: {crisp.io/device=/dev/kvm: 1}}", 1), store.PutOptions{}, store.Replaced)
	put(t, s, strings.Replace(web, "name: app", "name: app2", 1), store.PutOptions{}, store.Replaced)
	// The class decides where the pod's cgroup is: its processes cannot move.
	limited := strings.Replace(web, "name: app", "name: app2, resources: {limits: {cpu: 1}}", 1)
	if _, _, _, err := s.Put([]byte(limited), store.PutOptions{InPlace: true}); !errors.Is(err, fault.Invalid) {
		t.Errorf("another QoS class in place: %v", err)
	}
	uid = put(t, s, limited, store.PutOptions{}, store.Replaced)
	if got := put(t, s, strings.Replace(limited, "cpu: 1", "cpu: 2", 1), store.PutOptions{InPlace: true}, store.Configured); got != uid {
		t.Errorf("other limits made another pod")
	}
	u := s.Update()
	var keys []string
	for _, f := range u.Files {
		keys = append(keys, f.Path)
	}
	if got, want := strings.Join(keys, ", "), "configmap default/c, pod default/web, secret default/s"; got != want || u.Source != "api" {
		t.Errorf("source %s has %s, want %s", u.Source, got, want)
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		info, infoErr := d.Info()
		if err == nil && infoErr == nil && info.Mode().Perm()&0o077 != 0 && path != dir {
			t.Errorf("%s has the mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Names may have 253 bytes, those of files 255, with a suffix and while they are written.
func TestLongNames(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for _, n := range []int{234, 240, 250, 251, 253} {
		name := strings.Repeat("a", n)
		put(t, s, strings.Replace(config, "name: c", "name: "+name, 1), store.PutOptions{}, store.Created)
		if _, err := open(t, dir).Get("configmap default/" + name); err != nil {
			t.Errorf("a name of %d bytes: %v", n, err)
		}
	}
}

func TestDelete(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	uid := put(t, s, web, store.PutOptions{}, store.Created)
	grace := func(want int64) {
		t.Helper()
		o, err := s.Get("pod default/web")
		if err != nil || o.GetDeletionTimestamp() == nil || *o.GetDeletionGracePeriodSeconds() != want {
			t.Fatalf("%v, %v", o, err)
		}
	}
	if _, err := s.Delete("pod default/web", "another", nil, false); !errors.Is(err, fault.WrongState) {
		t.Errorf("Delete of another UID: %v", err)
	}
	for _, step := range []struct{ asked, want int64 }{{-1, 7}, {30, 7}, {3, 3}} {
		var asked *int64
		if step.asked >= 0 {
			asked = &step.asked
		}
		if _, err := s.Delete("pod default/web", uid, asked, false); err != nil {
			t.Fatal(err)
		}
		grace(step.want)
	}
	s = open(t, dir) // the deletion continues
	grace(3)
	if err := s.Ended("default", "web", "another"); err != nil {
		t.Fatal(err)
	}
	grace(3)
	if err := s.Ended("default", "web", uid); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*store.Store{s, open(t, dir)} {
		if _, err := s.Get("pod default/web"); !errors.Is(err, fault.NotFound) {
			t.Errorf("after its end: %v", err)
		}
	}
	if _, err := s.Delete("pod default/web", "", nil, false); !errors.Is(err, fault.NotFound) {
		t.Errorf("Delete of nothing: %v", err)
	}
	put(t, s, config, store.PutOptions{}, store.Created)
	if _, err := s.Delete("configmap default/c", "", nil, false); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get("configmap default/c"); !errors.Is(err, fault.NotFound) {
		t.Errorf("a config map waits: %v", err)
	}
}

// A pod that does not end can be removed by force.
func TestDeleteByForce(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, web, store.PutOptions{}, store.Created)
	for i, want := range []bool{true, false} {
		if _, err := s.Delete("pod default/web", "", nil, true); err != nil {
			t.Fatal(err)
		}
		o, err := s.Get("pod default/web")
		if there := err == nil; there != want || there && *o.GetDeletionGracePeriodSeconds() != 0 {
			t.Errorf("after %d: %v, %v", i+1, o, err)
		}
	}
}

func TestPutRefuses(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, config, store.PutOptions{}, store.Created)
	put(t, s, "{apiVersion: v1, kind: ConfigMap, metadata: {name: i}, immutable: true, data: {a: b}}", store.PutOptions{}, store.Created)
	for _, test := range []struct {
		name, text string
		o          store.PutOptions
		kind       fault.Kind
		want       string
	}{
		{"is there", config, store.PutOptions{Create: true}, fault.Exists, "configmap default/c is already there"},
		{"is not there", web, store.PutOptions{Update: true}, fault.NotFound, "there is no pod default/web"},
		{"an old version", strings.Replace(config, "name: c", `name: c, resourceVersion: "1"`, 1), store.PutOptions{}, fault.WrongState, "configmap default/c has been changed: read it again"},
		{"unknown field", strings.Replace(web, "image:", "imagee:", 1), store.PutOptions{}, fault.Invalid, "spec.containers[0].imagee: unknown field"},
		{"immutable", "{apiVersion: v1, kind: ConfigMap, metadata: {name: i}, immutable: true, data: {a: c}}", store.PutOptions{}, fault.Invalid, "configmap default/i is immutable"},
		{"two", web + "---\n" + config, store.PutOptions{}, fault.Invalid, "want one object, got 2"},
	} {
		_, _, _, err := s.Put([]byte(test.text), test.o)
		if !errors.Is(err, test.kind) || err.Error() != test.want {
			t.Errorf("%s: %v, want %s", test.name, err, test.want)
		}
	}
	if _, outcome, _, err := s.Put([]byte(web), store.PutOptions{DryRun: true}); outcome != store.Created || err != nil {
		t.Errorf("dry run: %s, %v", outcome, err)
	}
	if _, err := s.Get("pod default/web"); !errors.Is(err, fault.NotFound) {
		t.Errorf("a dry run has made it: %v", err)
	}
}

// An object that was saved as it was read, with its UID and version, can be created again after its
// deletion, as with an API server.
func TestCreateFromSaved(t *testing.T) {
	for _, o := range []store.PutOptions{{Create: true}, {}} {
		s := open(t, t.TempDir())
		uid := put(t, s, config, store.PutOptions{}, store.Created)
		saved, err := s.Get("configmap default/c")
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(saved)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Delete("configmap default/c", "", nil, false); err != nil {
			t.Fatal(err)
		}
		if again := put(t, s, string(text), o, store.Created); again == uid {
			t.Errorf("%+v: the object has the UID of the deleted one", o)
		}
	}
}

// An object can be written back as it was read.
func TestRoundTrip(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, web, store.PutOptions{}, store.Created)
	o, err := s.Get("pod default/web")
	if err != nil {
		t.Fatal(err)
	}
	pod := o.(*v1.Pod).DeepCopy()
	pod.Status.Phase = v1.PodRunning
	text, err := yaml.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	if got := put(t, s, string(text), store.PutOptions{Update: true}, store.Configured); got != pod.UID {
		t.Error("it became another pod")
	}
}

// An object that a newer agent rejects stays on disk and is reported.
func TestRejectedLater(t *testing.T) {
	dir := t.TempDir()
	put(t, open(t, dir), web, store.PutOptions{}, store.Created)
	path := filepath.Join(dir, "pod", "default", "web.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(data), `"name":"app"`, `"name":"../app"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	u := open(t, dir).Update()
	if len(u.Files) != 1 || u.Files[0].Err == nil || u.Files[0].Path != "pod default/web" {
		t.Errorf("%+v", u)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

// What an earlier agent accepted runs on under one with other rules, which says what these are. They
// judge only what an edit changes.
func TestAcceptedByAnEarlierAgent(t *testing.T) {
	dir := t.TempDir()
	uid := put(t, open(t, dir), web, store.PutOptions{}, store.Created)
	path := filepath.Join(dir, "pod", "default", "web.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	old := strings.NewReplacer(`"i:1"`, `"i:1 "`, `"containers"`, `"schedulingGates":[{"name":"a"}],"noLonger":1,"containers"`).Replace(string(data))
	if err := os.WriteFile(path, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	f := s.Update().Files[0]
	const want = `pod default/web: spec.schedulingGates: there is no scheduler that would wait
pod default/web: spec.containers[0].image: "i:1 " has blanks around it`
	if f.Err != nil || len(f.Objects) != 1 || f.Objects[0].GetUID() != uid || f.Warnings.Error() != want {
		t.Fatalf("%+v", f)
	}
	if pod := f.Objects[0].(*v1.Pod); len(pod.Spec.SchedulingGates) > 0 || pod.Spec.Containers[0].Image != "i:1 " {
		t.Errorf("%+v", pod.Spec)
	}
	kept := strings.NewReplacer("i:1", "i:1 ", "  containers", "  schedulingGates: [{name: a}]\n  containers").Replace(web)
	for name, edit := range map[string]*strings.Replacer{
		"the wrong value":  strings.NewReplacer("i:1 ", "i:2 "),
		"another":          strings.NewReplacer("name: web", "name: web, labels: {a: a b}"),
		"an unknown field": strings.NewReplacer("  containers", "  noLonger: 1\n  containers"),
		"another object":   strings.NewReplacer("name: web", "name: other"),
	} {
		if _, _, _, err := s.Put([]byte(edit.Replace(kept)), store.PutOptions{}); !errors.Is(err, fault.Invalid) {
			t.Errorf("an edit of %s: %v", name, err)
		}
	}
	edited := strings.Replace(kept, "name: web", "name: web, labels: {a: b}", 1)
	for _, outcome := range []store.Outcome{store.Configured, store.Unchanged} {
		object, got, warnings, err := s.Put([]byte(edited), store.PutOptions{})
		if err != nil || got != outcome || object.GetUID() != uid || len(warnings) != 2 {
			t.Fatalf("an edit of something else: %v, %q, %v", got, warnings, err)
		}
		if w := s.Update().Files[0].Warnings; w.Error() != want {
			t.Errorf("what is wrong is no longer shown: %v", w)
		}
	}
	if _, _, _, err := s.Put([]byte(strings.Replace(edited, "  containers", "  other: 1\n  containers", 1)), store.PutOptions{Unknown: manifest.Warn, DryRun: true}); err != nil {
		t.Errorf("an unknown field is an error, and was only to be a warning: %v", err)
	}
}

// An edit of a list may move what an earlier agent accepted in it.
func TestAcceptedElementMoves(t *testing.T) {
	dir := t.TempDir()
	const text = `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
		"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "c", "image": "i:1"}]}}}}`
	put(t, open(t, dir), text, store.PutOptions{}, store.Created)
	path := filepath.Join(dir, "deployment", "default", "w.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	wrong := strings.NewReplacer(`"emptyDir":{}`, `"emptyDir":{"mode":7}`, `"emptyDir": {}`, `"emptyDir": {"mode": 7}`)
	if err := os.WriteFile(path, []byte(wrong.Replace(string(data))), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	mode := func() bool {
		var now struct{ Object json.RawMessage } // its former templates are beside it
		data, err := os.ReadFile(path)
		return err != nil || json.Unmarshal(data, &now) != nil || strings.Contains(string(now.Object), `"mode"`)
	}
	moved := strings.Replace(wrong.Replace(text), `{"name": "v"`, `{"name": "u", "emptyDir": {}}, {"name": "v"`, 1)
	if _, _, _, err := s.Put([]byte(moved), store.PutOptions{DryRun: true}); err != nil || !mode() {
		t.Errorf("a volume before it: %v", err)
	}
	if _, _, _, err := s.Put([]byte(strings.Replace(moved, `"u", "emptyDir": {}`, `"u", "emptyDir": {"mode": 7}`, 1)), store.PutOptions{DryRun: true}); !errors.Is(err, fault.Invalid) {
		t.Errorf("another of the same kind: %v", err)
	}
	// Whoever removes what has no effect has removed it, though the template means the same.
	if _, _, _, err := s.Put([]byte(text), store.PutOptions{}); err != nil || mode() {
		t.Errorf("it cannot be removed: %v", err)
	}
}

// A running pod survives an agent with other rules or another node name: it stays wanted as it was
// accepted, and can be deleted. A pod that never ran and an unreadable file can be deleted too.
func TestRejectedIsNotLost(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	uid := put(t, s, web, store.PutOptions{}, store.Created)
	put(t, s, config, store.PutOptions{}, store.Created)
	running, err := s.Get("pod default/web")
	if err != nil {
		t.Fatal(err)
	}
	for file, change := range map[string]func(string) string{
		"pod/default/web.json": func(text string) string {
			return strings.Replace(text, `"containers"`, `"nodeName":"n0","containers"`, 1)
		},
		"configmap/default/c.json": func(string) string { return "nonsense" },
	} {
		data, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(change(string(data))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s = openWith(t, dir, map[types.UID]*v1.Pod{uid: running.(*v1.Pod)})
	for _, f := range s.Update().Files {
		if f.Err == nil || (len(f.Objects) == 1) != (f.Path == "pod default/web") {
			t.Errorf("%s: %d objects, %v", f.Path, len(f.Objects), f.Err)
		}
	}
	if o, err := s.Get("pod default/web"); err != nil || o.GetUID() != uid || len(o.(*v1.Pod).Spec.Containers) != 1 {
		t.Errorf("%v, %v", o, err)
	}
	if o, err := s.Delete("pod default/web", "", nil, false); err != nil || o.GetDeletionTimestamp() == nil {
		t.Errorf("%v, %v", o, err)
	}
	if err := s.Ended("default", "web", uid); err != nil {
		t.Error(err)
	}
	if !s.Rejected("configmap default/c") {
		t.Error("what cannot be read is not there")
	}
	if _, err := s.Delete("configmap default/c", "", nil, false); err != nil {
		t.Error(err)
	}
	if left := open(t, dir).Update().Files; len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

// A running pod survives the loss of its object on disk: it stays wanted as it was accepted, is
// reported, and can be changed and deleted. A pod of the same name from another source is not
// mistaken for it.
func TestLostObjectOfRunningPod(t *testing.T) {
	for _, text := range []string{"", "nonsense", `{"uid":`} {
		dir := t.TempDir()
		s := open(t, dir)
		uid := put(t, s, web, store.PutOptions{}, store.Created)
		running, err := s.Get("pod default/web")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "pod/default/web.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		ofFile := running.(*v1.Pod).DeepCopy()
		ofFile.Annotations[manifest.AnnotationSource] = manifest.SourceFile
		if s := openWith(t, dir, map[types.UID]*v1.Pod{uid: ofFile}); !s.Rejected("pod default/web") {
			t.Errorf("%q: the pod of a file is the store's", text)
		}
		s = openWith(t, dir, map[types.UID]*v1.Pod{uid: running.(*v1.Pod)})
		if u := s.Update(); len(u.Files) != 1 || u.Files[0].Err == nil || len(u.Files[0].Objects) != 1 || u.Files[0].Objects[0].GetUID() != uid {
			t.Errorf("%q: %+v", text, u.Files)
		}
		if got := put(t, s, strings.Replace(web, "i:1", "i:2", 1), store.PutOptions{}, store.Configured); got != uid {
			t.Errorf("%q: it became another pod", text)
		}
		if o, err := open(t, dir).Get("pod default/web"); err != nil || o.GetUID() != uid {
			t.Errorf("%q: afterwards %v, %v", text, o, err)
		}
	}
}

// A pod whose object was lost during its deletion still ends, within its grace period. So does one
// whose record or pod.json is damaged but valid JSON.
func TestDeletionOutlivesLostObject(t *testing.T) {
	for _, text := range []string{"", "null"} {
		dir := t.TempDir()
		s := open(t, dir)
		uid := put(t, s, web, store.PutOptions{}, store.Created)
		grace := int64(3)
		deleted, err := s.Delete("pod default/web", "", &grace, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "pod/default/web.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s = openWith(t, dir, map[types.UID]*v1.Pod{uid: deleted.(*v1.Pod)})
		pod, err := s.Get("pod default/web")
		if err != nil || pod.GetDeletionTimestamp() == nil || ptr.Deref(pod.GetDeletionGracePeriodSeconds(), 0) != grace || pod.GetGeneration() != 1 {
			t.Fatalf("%q: %+v, %v", text, pod, err)
		}
		if err := s.Ended("default", "web", uid); err != nil {
			t.Error(err)
		}
		if left := open(t, dir).Update().Files; len(left) != 0 {
			t.Errorf("%q: %v is left", text, left)
		}
	}
	dir := t.TempDir()
	uid := put(t, open(t, dir), web, store.PutOptions{}, store.Created)
	path := filepath.Join(dir, "pod/default/web.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(data), `"containers"`, `"nodeName":"n0","containers"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	bare := &v1.Pod{}
	bare.Namespace, bare.Name, bare.UID = "default", "web", uid
	s := openWith(t, dir, map[types.UID]*v1.Pod{uid: bare})
	if o, err := s.Delete("pod default/web", "", nil, false); err != nil || o.GetDeletionTimestamp() == nil {
		t.Errorf("%v, %v", o, err)
	}
}

// "get -o yaml" prints the pod's node. If the store kept that name, the pod would be rejected after
// the host was renamed.
func TestNodeNameIsNotKept(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, web, store.PutOptions{}, store.Created)
	put(t, s, strings.Replace(web, "spec:", "spec:\n  nodeName: n1", 1), store.PutOptions{}, store.Unchanged)
	if _, _, _, err := s.Put([]byte(strings.Replace(web, "spec:", "spec:\n  nodeName: n2", 1)), store.PutOptions{}); !errors.Is(err, fault.Invalid) {
		t.Errorf("of another node: %v", err)
	}
}

// The deadline of a Job starts again when it is resumed, also after a restart of the agent.
func TestResumedJob(t *testing.T) {
	const job = `{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"suspend": %t, "parallelism": %d,
		"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}`
	dir := t.TempDir()
	s := open(t, dir)
	start := func() *metav1.Time {
		o, err := s.Get("job default/j")
		if err != nil {
			t.Fatal(err)
		}
		return o.(*batchv1.Job).Status.StartTime
	}
	for i, suspend := range []bool{false, true, true, false, false} {
		o := store.Configured
		if i == 0 {
			o = store.Created
		}
		put(t, s, fmt.Sprintf(job, suspend, i), store.PutOptions{}, o)
		if got, want := start() != nil, i >= 3; got != want {
			t.Errorf("after %d changes it has a startTime: %t", i, got)
		}
	}
	last := start()
	if s = open(t, dir); !start().Equal(last) {
		t.Errorf("the next agent has it begin at %v, the last at %v", start(), last)
	}
}
