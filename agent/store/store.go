// Package store keeps the objects that the agent was given by "crisp apply" or its HTTP
// API, as an API server does: durable before the answer, each with a UID, a resource
// version and a generation.
//
// On disk each object is one file, <dir>/<kind>/<namespace>/<name>.json ("_" for
// kinds without namespaces), mode 0600 since there are secrets among them. It has
// the text that was given and the metadata that the store adds. Like a manifest file, the
// text is decoded anew when an agent starts, with the defaults of that agent, and of its
// rules only those that hold for what was accepted before. If these reject an object it stays
// on disk and is reported; a pod that runs stays as it was accepted.
//
// A deleted pod stays until Ended says that nothing of it is left; all other objects are
// removed at once. If a change to a pod's spec is not possible in place, another pod of
// the same name replaces it.
package store

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/poke"
)

// A record is an object as it is on disk.
type record struct {
	UID        types.UID       `json:"uid"`
	Created    metav1.Time     `json:"created"`
	Generation int64           `json:"generation"`
	Version    uint64          `json:"version"`
	Deleted    *metav1.Time    `json:"deleted,omitempty"`
	Grace      *int64          `json:"grace,omitempty"` // seconds, with Deleted
	Object     json.RawMessage `json:"object"`          // as it was given
	// Applied has the whole configuration that each field manager applied last.
	Applied map[string]json.RawMessage `json:"applied,omitempty"`
	// Revisions are the templates of a workload, the present one last.
	Revisions []Revision `json:"revisions,omitempty"`
	// Resumed is when a Job was last resumed after it had been suspended.
	Resumed     *metav1.Time    `json:"resumed,omitempty"`
	file        string          // its path
	decoded     manifest.Object // nil if rejected; for a pod that runs, the pod as it was accepted
	err         error           // why the object is rejected
	warnings    manifest.Errors // for what the object would be rejected today
	description string          // manifest.Key, also of a rejected object
}

// A Store is safe for concurrent use. Changes are written to disk under its lock: they are
// few, and each must see the one before it completed.
type Store struct {
	dir      string
	node     string
	accepted Accepted
	changed  chan struct{} // of capacity 1

	mu      sync.Mutex
	records map[string]*record // by manifest.Key; guarded by mu
	version uint64             // the last that was assigned; guarded by mu
	made    map[string]bool    // directories whose names are on disk; guarded by mu
}

// Accepted has the pods as earlier agents accepted them (podfiles.Store).
type Accepted interface {
	Pod(types.UID) *v1.Pod    // nil if there is none
	Last(podsync.Key) *v1.Pod // the one of this name that goes on; nil if there is none
}

// Changed receives a value when Update would return something new.
func (s *Store) Changed() <-chan struct{} { return s.changed }

func (s *Store) poke() { poke.Wake(s.changed) }

// Update returns all objects in the form of a source's report, each as a file of its own.
func (s *Store) Update() source.Update {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := source.Update{Source: manifest.SourceAPI}
	for _, key := range slices.Sorted(maps.Keys(s.records)) {
		r := s.records[key]
		f := source.File{Path: key, Err: r.err, Warnings: r.warnings}
		if r.decoded != nil {
			f.Objects = []manifest.Object{r.decoded}
		}
		u.Files = append(u.Files, f)
	}
	return u
}

// Get returns the object of this manifest.Key, shared and read-only, or fault.NotFound.
func (s *Store) Get(key string) (manifest.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[key]
	if !ok || r.decoded == nil {
		return nil, fault.NotFound.Errorf("there is no %s", key)
	}
	return r.decoded, nil
}

// Rejected reports whether there is an object of this key that was rejected, and so has no
// decoded form.
func (s *Store) Rejected(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[key]
	return ok && r.decoded == nil
}

// Applied returns, by field manager, the configuration of an object that each applied last;
// nil if none has.
func (s *Store) Applied(key string) map[string]json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.records[key]; ok {
		return r.Applied
	}
	return nil
}

// Given returns the text of an object as it was given, or fault.NotFound.
func (s *Store) Given(key string) (json.RawMessage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[key]
	if !ok {
		return nil, fault.NotFound.Errorf("there is no %s", key)
	}
	return r.Object, nil
}
