package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/internal/fault"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// An Outcome is the effect of Put.
type Outcome string

const (
	Created    Outcome = "created"
	Configured Outcome = "configured" // the same object, changed
	Replaced   Outcome = "replaced"   // by another object of the same name
	Unchanged  Outcome = "unchanged"
)

// PutOptions modify Put.
type PutOptions struct {
	Create  bool // the object must not exist
	Update  bool // the object must exist
	InPlace bool // a pod must not be replaced, nor change its QoS class
	DryRun  bool // return the result, but change nothing
	Unknown manifest.Unknown
	// Applied, if not nil, is recorded with the object: the configuration that each field manager
	// applied last. If it is nil, the record keeps its own.
	Applied map[string]json.RawMessage
}

// Put creates or changes an object. text is its JSON or YAML. Put ignores fields that the store
// sets, except metadata.resourceVersion and metadata.uid: if present, they must be those of the
// object that exists. The returned object is shared and read-only.
//
// The error is fault.Invalid if text is not one valid object or changes an immutable one,
// fault.NotFound or fault.Exists by PutOptions, and fault.WrongState if the version or the UID is
// not the current one.
func (s *Store) Put(text []byte, o PutOptions) (manifest.Object, Outcome, manifest.Errors, error) {
	given, uid, version, err := s.clean(text)
	if err != nil {
		return nil, "", nil, err
	}
	objects, warnings, err := manifest.Read("", given, s.options(o.Unknown)) // before the lock: it may take a while
	var wrong manifest.Errors
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		objects, warnings, wrong, err = s.forgiveLocked(given, o.Unknown, err)
	}
	if err != nil {
		return nil, "", nil, plain(err)
	}
	if len(objects) != 1 {
		return nil, "", nil, fault.Invalid.Errorf("want one object, got %d", len(objects))
	}
	key := manifest.Key(objects[0])
	old := s.records[key]
	if same := keepTemplate(given, objects[0], old, !o.Update); same != nil {
		// The text that it has may have what the new one has not: a field that counts for nothing.
		if kept, w, err := manifest.Read("", same, s.options(o.Unknown)); err == nil && len(w) <= len(warnings) {
			given, objects, warnings = same, kept, w
		}
	}
	switch {
	case old == nil && o.Update:
		return nil, "", nil, fault.NotFound.Errorf("there is no %s", key)
	case old != nil && o.Create:
		return nil, "", nil, fault.Exists.Errorf("%s is already there", key)
	case old != nil && (uid != "" && old.UID != uid || version != "" && strconv.FormatUint(old.Version, 10) != version):
		return nil, "", nil, fault.WrongState.Errorf("%s has been changed: read it again", key)
	}
	r := &record{Object: given, file: s.path(objects[0]), decoded: objects[0], description: key, warnings: of(key, wrong)}
	outcome, err := s.succeed(r, old, o.InPlace)
	if err != nil || outcome == Unchanged {
		if old != nil {
			r = old
		}
		if err == nil && o.Applied != nil && !o.DryRun && !sameTexts(o.Applied, r.Applied) {
			r = r.with(o.Applied)
			err = s.saveLocked(r)
		}
		return r.decoded, outcome, warnings, err
	}
	if r.Applied = o.Applied; r.Applied == nil && old != nil {
		r.Applied = old.Applied
	}
	s.stamp(r)
	if o.DryRun {
		return r.decoded, outcome, warnings, nil
	}
	return r.decoded, outcome, warnings, s.saveLocked(r)
}

// of returns errors in the text of an object that is not from a file.
func of(key string, errs manifest.Errors) manifest.Errors {
	errs = slices.Clone(errs)
	for i := range errs {
		errs[i].File, errs[i].Line = key, 0
	}
	return errs
}

// forgiveLocked reads an object to put for which manifest.Read returned err. What was wrong with it
// before, in the same words, is only a warning, as in Kubernetes: an earlier release accepted it,
// and whoever edits something else need not mend it. wrong has only these, warnings also
// has unknown fields.
func (s *Store) forgiveLocked(given []byte, u manifest.Unknown, err error) (objects []manifest.Object, warnings, wrong manifest.Errors, _ error) {
	o := s.options(u)
	o.Accepted = true
	objects, warnings, acceptedErr := manifest.Read("", given, o)
	if acceptedErr != nil || len(objects) != 1 {
		return nil, nil, nil, err
	}
	old := s.records[manifest.Key(objects[0])]
	if old == nil || old.Deleted != nil {
		return nil, nil, nil, err
	}
	wrong = warnings
	if u != manifest.Strict { // then unknown fields are no errors
		o.Unknown = manifest.Ignore
		_, wrong, _ = manifest.Read("", given, o)
	}
	known := map[[2]string]int{} // how often
	for _, b := range old.warnings {
		known[[2]string{index.ReplaceAllString(b.Field, "[]"), b.Text}]++
	}
	for _, w := range wrong {
		fault := [2]string{index.ReplaceAllString(w.Field, "[]"), w.Text}
		if known[fault]--; known[fault] < 0 {
			return nil, nil, nil, err
		}
	}
	return objects, warnings, wrong, nil
}

// index matches the place in a list, which an edit of another element may move.
var index = regexp.MustCompile(`\[\d+\]`)

// with returns a copy of the record with other configurations of field managers.
func (r *record) with(applied map[string]json.RawMessage) *record {
	next := *r
	next.Applied = applied
	return &next
}

func sameTexts(a, b map[string]json.RawMessage) bool {
	return maps.EqualFunc(a, b, func(x, y json.RawMessage) bool { return bytes.Equal(x, y) })
}

// succeed decides the outcome when r replaces old, and sets r's UID, version and generation.
func (s *Store) succeed(r, old *record, inPlace bool) (Outcome, error) {
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
		if inPlace {
			return "", fault.Invalid.Errorf("%s: cannot be changed in place: it is being deleted, or its QoS class or a fixed field would change", r.description)
		}
		return Replaced, nil
	}
	r.UID, r.Created, r.Generation, r.Resumed = old.UID, old.Created, old.Generation+1, old.Resumed
	if suspended(old.decoded) && !suspended(r.decoded) {
		r.Resumed = new(metav1.Now().Rfc3339Copy())
	}
	return Configured, nil
}

// clean converts text to JSON without the fields that only the agent sets, and returns the UID and
// the resource version in it.
func (s *Store) clean(text []byte) (given []byte, uid types.UID, version string, err error) {
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
		delete(spec, "ephemeralContainers") // these have their own subresource
		if spec["nodeName"] == s.node {     // the node may be renamed
			delete(spec, "nodeName")
		}
	}
	cleanJob(object)
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

// cleanJob removes the selector of a Job if it is the agent's.
func cleanJob(object map[string]any) {
	spec, ok := object["spec"].(map[string]any)
	if !ok || object["kind"] != "Job" {
		return
	}
	m, _ := object["metadata"].(map[string]any)
	name, _ := m["name"].(string)
	own, err := json.Marshal(manifest.JobSelector(name))
	if err != nil {
		return
	}
	if text, err := json.Marshal(spec["selector"]); err == nil && equalJSON(text, own) {
		delete(spec, "selector")
	}
}

// plain removes the positions from errors of manifest.Read: the text has no file and no lines.
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
