// Package store keeps the objects that were given to the agent itself, by "crisp
// apply" or its HTTP API, as an API server keeps them: durable before the answer,
// each with a UID, a resource version and a generation.
//
// On disk each object is one file, <dir>/<kind>/<namespace>/<name>.json ("_" for
// kinds without namespaces), mode 0600 since there are secrets among them. It has
// the text that was given and what the store adds to it. The text is decoded
// anew when an agent starts, as that of a file is: with the defaults and the
// rules of that agent. An object that these reject stays on disk and is told.
//
// A pod that is deleted stays until Ended says that nothing of it is left; all
// other objects are removed at once. A pod whose spec is changed beyond what a
// running pod can follow is replaced by another pod of the same name.
package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// A record is an object as it is on disk.
type record struct {
	UID         types.UID       `json:"uid"`
	Created     metav1.Time     `json:"created"`
	Generation  int64           `json:"generation"`
	Version     uint64          `json:"version"`
	Deleted     *metav1.Time    `json:"deleted,omitempty"`
	Grace       *int64          `json:"grace,omitempty"` // seconds, with Deleted
	Object      json.RawMessage `json:"object"`          // as it was given
	file        string          // its path
	decoded     manifest.Object // nil with err
	err         error           // why it is rejected
	description string          // manifest.Key, also if it is rejected
}

// A Store is safe for use by all goroutines. Changes are written to disk under
// its lock: they are few, and each must find the one before it done.
type Store struct {
	dir     string
	node    string
	changed chan struct{} // of capacity 1

	mu      sync.Mutex
	records map[string]*record // by manifest.Key; guarded by mu
	version uint64             // the last that was given; guarded by mu
}

// Open reads what is in dir.
func Open(dir, node string, log *slog.Logger) (*Store, error) {
	s := &Store{
		dir: dir, node: node, changed: make(chan struct{}, 1), records: map[string]*record{},
		// Versions only grow, whatever was the last one that is gone by now.
		version: uint64(time.Now().UnixMilli()),
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			return err
		}
		r := &record{file: path, description: s.keyOf(path)}
		data, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(data, r)
		}
		if err != nil {
			// Half a file cannot be: it was renamed into place.
			log.Error("kept object could not be read", "file", path, "err", err)
			return nil
		}
		s.decode(r)
		if r.err != nil {
			log.Error("kept object rejected", "object", r.description, "err", r.err)
		}
		s.version = max(s.version, r.Version)
		s.records[r.description] = r
		return nil
	})
	s.poke()
	return s, err
}

// keyOf is the key of what is kept at path, also if it is rejected.
func (s *Store) keyOf(path string) string {
	rel := strings.TrimPrefix(strings.TrimSuffix(path, ".json"), s.dir+"/")
	kind, name, _ := strings.Cut(rel, "/")
	return kind + " " + strings.TrimPrefix(name, "_/")
}

// decode fills in r.decoded or r.err.
func (s *Store) decode(r *record) {
	objects, _, err := manifest.Read("", r.Object, s.options(manifest.Ignore))
	if err != nil || len(objects) != 1 {
		r.err = plain(err)
		return
	}
	r.decoded, r.err, r.description = objects[0], nil, manifest.Key(objects[0])
	s.stamp(r)
}

// stamp gives the decoded object what the store knows of it.
func (s *Store) stamp(r *record) {
	o := r.decoded
	o.SetUID(r.UID)
	o.SetCreationTimestamp(r.Created)
	o.SetGeneration(r.Generation)
	o.SetResourceVersion(strconv.FormatUint(r.Version, 10))
	o.SetDeletionTimestamp(r.Deleted)
	o.SetDeletionGracePeriodSeconds(r.Grace)
	o.GetAnnotations()[manifest.AnnotationFile] = r.description
}

func (s *Store) options(u manifest.Unknown) manifest.Options {
	return manifest.Options{NodeName: s.node, Source: manifest.SourceAPI, Unknown: u}
}

// plain takes the positions off the errors of a text that has no lines.
func plain(err error) error {
	errs, ok := errors.AsType[manifest.Errors](err)
	if !ok {
		return err
	}
	texts := make([]string, len(errs))
	for i, e := range errs {
		e.File, e.Line = "", 0
		texts[i] = strings.TrimPrefix(e.Error(), ": ")
	}
	return fault.Invalid.Errorf("%s", strings.Join(texts, "\n"))
}

// Changed tells that Update has something new.
func (s *Store) Changed() <-chan struct{} { return s.changed }

func (s *Store) poke() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Update returns all objects as a source does, each as a file of its own.
func (s *Store) Update() source.Update {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := source.Update{Source: manifest.SourceAPI}
	for _, key := range slices.Sorted(maps.Keys(s.records)) {
		r := s.records[key]
		f := source.File{Path: key, Err: r.err}
		if r.decoded != nil {
			f.Objects = []manifest.Object{r.decoded}
		}
		u.Files = append(u.Files, f)
	}
	return u
}

// Get returns the object of this key.
func (s *Store) Get(key string) (manifest.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[key]
	if !ok || r.decoded == nil {
		return nil, fault.NotFound.Errorf("there is no %s", key)
	}
	return r.decoded, nil
}

// Given returns the text of an object as it was given.
func (s *Store) Given(key string) (json.RawMessage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[key]
	if !ok {
		return nil, fault.NotFound.Errorf("there is no %s", key)
	}
	return r.Object, nil
}

// An Outcome is what Put has done.
type Outcome string

const (
	Created    Outcome = "created"
	Configured Outcome = "configured" // the same object, changed
	Replaced   Outcome = "replaced"   // a pod by another one
	Unchanged  Outcome = "unchanged"
)

// PutOptions say how to put.
type PutOptions struct {
	Create  bool // it must not exist
	Update  bool // it must exist
	DryRun  bool // only say what would be
	Unknown manifest.Unknown
}

// Put makes or changes an object. text is its JSON or YAML; what the store adds
// to objects is ignored in it, but for metadata.resourceVersion and
// metadata.uid, which must be the current ones if they are given.
func (s *Store) Put(text []byte, o PutOptions) (manifest.Object, Outcome, manifest.Errors, error) {
	given, uid, version, err := clean(text)
	if err != nil {
		return nil, "", nil, err
	}
	objects, warnings, err := manifest.Read("", given, s.options(o.Unknown))
	if err != nil {
		return nil, "", nil, plain(err)
	}
	if len(objects) != 1 {
		return nil, "", nil, fault.Invalid.Errorf("want one object, got %d", len(objects))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := manifest.Key(objects[0])
	old := s.records[key]
	switch {
	case old == nil && o.Update:
		return nil, "", nil, fault.NotFound.Errorf("there is no %s", key)
	case old != nil && o.Create:
		return nil, "", nil, fault.Exists.Errorf("%s is already there", key)
	case uid != "" && (old == nil || old.UID != uid),
		version != "" && (old == nil || strconv.FormatUint(old.Version, 10) != version):
		return nil, "", nil, fault.WrongState.Errorf("%s has been changed: read it again", key)
	}
	r := &record{Object: given, file: s.path(objects[0]), decoded: objects[0], description: key}
	outcome, err := s.succeed(r, old)
	if err != nil || outcome == Unchanged {
		if old != nil {
			r = old
		}
		return r.decoded, outcome, warnings, err
	}
	s.stamp(r)
	if o.DryRun {
		return r.decoded, outcome, warnings, nil
	}
	return r.decoded, outcome, warnings, s.saveLocked(r)
}

// succeed says what r is to old, and fills in r's record.
func (s *Store) succeed(r, old *record) (Outcome, error) {
	s.version++
	r.Version = s.version
	r.UID, r.Created, r.Generation = uuid.NewUUID(), metav1.Now().Rfc3339Copy(), 1
	if old == nil {
		return Created, nil
	}
	if old.Deleted == nil && old.decoded != nil && equalJSON(old.Object, r.Object) {
		return Unchanged, nil
	}
	if immutable(old.decoded) && !reflect.DeepEqual(content(old.decoded), content(r.decoded)) {
		return "", fault.Invalid.Errorf("%s is immutable", r.description)
	}
	if old.Deleted != nil || !follows(old.decoded, r.decoded) {
		return Replaced, nil
	}
	r.UID, r.Created, r.Generation = old.UID, old.Created, old.Generation+1
	return Configured, nil
}

func immutable(o manifest.Object) bool {
	switch o := o.(type) {
	case *v1.ConfigMap:
		return o.Immutable != nil && *o.Immutable
	case *v1.Secret:
		return o.Immutable != nil && *o.Immutable
	}
	return false
}

func content(o manifest.Object) any {
	switch o := o.(type) {
	case *v1.ConfigMap:
		return []any{o.Data, o.BinaryData, immutable(o)}
	case *v1.Secret:
		return []any{o.Data, o.Type, immutable(o)}
	}
	return nil
}

// follows reports whether the object can become the next one while it runs. Of a
// pod that is what Kubernetes lets be changed.
func follows(old, next manifest.Object) bool {
	was, ok := old.(*v1.Pod)
	if !ok {
		return old != nil
	}
	return reflect.DeepEqual(fixed(&was.Spec), fixed(&next.(*v1.Pod).Spec))
}

// fixed is the part of a spec that a pod keeps for life.
func fixed(spec *v1.PodSpec) *v1.PodSpec {
	spec = spec.DeepCopy()
	spec.ActiveDeadlineSeconds, spec.TerminationGracePeriodSeconds, spec.Tolerations, spec.EphemeralContainers = nil, nil, nil, nil
	for _, list := range [][]v1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			list[i].Image, list[i].ImagePullPolicy, list[i].Resources = "", "", v1.ResourceRequirements{}
		}
	}
	return spec
}

func equalJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// path is where an object is kept. Names are checked by then: they hold no "/".
func (s *Store) path(o manifest.Object) string {
	namespace := o.GetNamespace()
	if namespace == "" {
		namespace = "_"
	}
	return filepath.Join(s.dir, strings.ToLower(manifest.KindOf(o)), namespace, o.GetName()+".json")
}

func (s *Store) saveLocked(r *record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := makeDirs(filepath.Dir(r.file)); err != nil {
		return err
	}
	if err := atomicfile.Write(r.file, data, 0o600); err != nil {
		return fmt.Errorf("keep %s: %w", r.description, err)
	}
	s.records[r.description] = r
	s.poke()
	return nil
}

// makeDirs makes the directory and has its name on disk.
func makeDirs(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for range 2 { // a kind's directory and a namespace's may be new
		dir = filepath.Dir(dir)
		if err := atomicfile.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// Delete deletes an object; of a pod it begins the end. grace, in seconds, is the
// pod's own if nil; a second Delete can only make it shorter. With force it is 0,
// and a second time the pod's object goes at once, whatever is left of the pod.
func (s *Store) Delete(key string, uid types.UID, grace *int64, force bool) (manifest.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.records[key]
	if !ok {
		return nil, fault.NotFound.Errorf("there is no %s", key)
	}
	if uid != "" && uid != old.UID {
		return nil, fault.WrongState.Errorf("%s is another one by now", key)
	}
	pod, isPod := old.decoded.(*v1.Pod)
	if !isPod || force && old.Grace != nil && *old.Grace == 0 {
		return old.decoded, s.removeLocked(old)
	}
	seconds := *pod.Spec.TerminationGracePeriodSeconds
	if grace != nil {
		seconds = max(*grace, 0)
	}
	if force {
		seconds = 0
	}
	if old.Grace != nil && *old.Grace <= seconds {
		return old.decoded, nil
	}
	s.version++
	r := *old
	r.Version, r.Grace = s.version, &seconds
	r.Deleted = &metav1.Time{Time: time.Now().Add(time.Duration(seconds) * time.Second).Truncate(time.Second)}
	r.decoded = pod.DeepCopy()
	s.stamp(&r)
	return r.decoded, s.saveLocked(&r)
}

// Ended tells that nothing is left of a pod that was being deleted.
func (s *Store) Ended(namespace, name string, uid types.UID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records["pod "+namespace+"/"+name]
	if !ok || r.UID != uid || r.Deleted == nil {
		return nil
	}
	return s.removeLocked(r)
}

func (s *Store) removeLocked(r *record) error {
	if err := os.Remove(r.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := atomicfile.SyncDir(filepath.Dir(r.file)); err != nil {
		return err
	}
	delete(s.records, r.description)
	s.version++
	s.poke()
	return nil
}

// clean turns text into JSON and takes out what only the agent may say of an
// object.
func clean(text []byte) (given []byte, uid types.UID, version string, err error) {
	objects, err := manifest.Split("", text)
	if err != nil {
		return nil, "", "", plain(err)
	}
	if len(objects) != 1 {
		return nil, "", "", fault.Invalid.Errorf("want one object, got %d", len(objects))
	}
	var object map[string]any
	decoder := json.NewDecoder(bytes.NewReader(objects[0]))
	decoder.UseNumber()
	if err := decoder.Decode(&object); err != nil {
		return nil, "", "", fault.Invalid.Errorf("%v", err)
	}
	delete(object, "status")
	if spec, ok := object["spec"].(map[string]any); ok && object["kind"] == "Pod" {
		delete(spec, "ephemeralContainers") // they are added in a way of their own
	}
	if m, ok := object["metadata"].(map[string]any); ok {
		id, _ := m["uid"].(string)
		uid = types.UID(id)
		version, _ = m["resourceVersion"].(string)
		for _, key := range []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "ownerReferences"} {
			delete(m, key)
		}
		if a, ok := m["annotations"].(map[string]any); ok {
			for key := range a {
				if strings.HasPrefix(key, "kubernetes.io/config.") || strings.HasPrefix(key, "io.crisp.") {
					delete(a, key)
				}
			}
			if len(a) == 0 {
				delete(m, "annotations")
			}
		}
		if m["namespace"] == "" {
			delete(m, "namespace")
		}
	}
	given, err = json.Marshal(object)
	return given, uid, version, err
}
