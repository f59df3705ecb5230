package api

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/apiserver/watchcache"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/periodic"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	operator "k8s.io/apimachinery/pkg/selection"
)

// burst is how long changes are collected before they are sent to watchers.
const burst = 20 * time.Millisecond

// watch writes a line for each change until the client leaves or timeoutSeconds have passed.
// Without a resource version it begins with the existing objects; with sendInitialEvents it marks
// the end of these.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, k Kind, sel selection) error {
	q := r.URL.Query()
	var seq uint64
	if text := q.Get("resourceVersion"); text != "" && text != "0" && !BoolParam(q, "sendInitialEvents") {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return fault.Invalid.Errorf("resourceVersion: %v", err)
		}
		seq = n
	}
	ctx := r.Context()
	var timeout <-chan time.Time
	if seconds, err := strconv.Atoi(q.Get("timeoutSeconds")); err == nil && seconds > 0 {
		timeout = time.After(podsync.Seconds(int64(seconds)))
	}
	fresh := seq == 0
	seen := seen{sel, map[string]bool{}}
	if !fresh {
		objects, _ := s.cache.List(k.Name)
		seen.seed(objects, seq)
	}
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	for first := true; ; first = false {
		poked := s.cache.Poked()
		changes, now, err := s.cache.Since(k.Name, seq)
		if err != nil && first && !fresh {
			return err
		}
		if err != nil {
			return nil // the watch fell behind: the client must list again
		}
		if first && fresh && k.Name != "Event" { // the existing objects in the order of a list
			slices.SortStableFunc(changes, func(a, b watchcache.Change) int {
				return cmp.Or(cmp.Compare(a.Object.GetNamespace(), b.Object.GetNamespace()), cmp.Compare(a.Object.GetName(), b.Object.GetName()))
			})
		}
		for _, c := range changes {
			if c.Deleted && fresh && first {
				continue
			}
			kind := seen.event(c)
			if kind == "" {
				continue
			}
			if err := out.Encode(map[string]any{"type": kind, "object": represent(w, k, c.Object)}); err != nil {
				return nil
			}
		}
		if first && BoolParam(q, "sendInitialEvents") {
			if err := out.Encode(map[string]any{"type": "BOOKMARK", "object": initialEnd(k, now)}); err != nil {
				return nil
			}
		}
		seq = now
		http.NewResponseController(w).Flush()
		select {
		case <-ctx.Done():
			return nil
		case <-timeout:
			return nil
		case <-poked:
		}
		if !periodic.Pause(ctx, burst) { // concurrent changes become one batch
			return nil
		}
	}
}

// seen tracks which objects the client of a watch knows. An object that stops matching the selector
// is sent as DELETED, and one that begins to match as ADDED, as the API server does.
type seen struct {
	sel    selection
	wanted map[string]bool // by entryKey: whether the client knows the object
}

func entryKey(o manifest.Object) string {
	return o.GetNamespace() + "/" + o.GetName() + "/" + string(o.GetUID())
}

// seed adds the objects that have not changed since the client's list, which was made with the same
// selector.
func (t seen) seed(objects []manifest.Object, seq uint64) {
	for _, o := range objects {
		if n, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64); err == nil && n <= seq {
			t.wanted[entryKey(o)] = t.sel.takes(o)
		}
	}
}

// event returns the type of the event for a change, "" for none. If an object changed between the
// list and the watch, the list may or may not have had it. If it may, it counts as known, since an
// informer ignores a DELETED of an unknown object.
func (t seen) event(c watchcache.Change) string {
	key := entryKey(c.Object)
	before, known := t.wanted[key]
	before = before || !known && !c.New && t.sel.mayHaveTaken(c)
	now := !c.Deleted && t.sel.takes(c.Object)
	t.wanted[key] = now
	if c.Deleted {
		delete(t.wanted, key)
		before = before && (known || t.sel.takes(c.Object))
	}
	switch {
	case now && before:
		return "MODIFIED"
	case now:
		return "ADDED"
	case before:
		return "DELETED"
	}
	return ""
}

// mayHaveTaken reports whether an object may have matched before a change. Its name, namespace and
// the object of an event do not change.
func (sel selection) mayHaveTaken(c watchcache.Change) bool {
	o := c.Object
	set := fieldsOf(o)
	for _, r := range sel.fields.Requirements() {
		fixed := strings.HasPrefix(r.Field, "metadata.") || strings.HasPrefix(r.Field, "involvedObject.")
		if fixed && (set[r.Field] == r.Value) == (r.Operator == operator.NotEquals) {
			return false
		}
	}
	return (sel.namespace == "" || o.GetNamespace() == sel.namespace) && (c.Relabeled || sel.labels.Matches(labels.Set(o.GetLabels())))
}

// initialEnd returns the bookmark after the last object that existed when the watch began.
func initialEnd(k Kind, seq uint64) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: k.Group, Kind: k.Name}}
	o.ResourceVersion = strconv.FormatUint(seq, 10)
	o.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	return o
}
