// Package store keeps the objects that were given to the agent itself, by "crisp
// apply" or its HTTP API, as an API server keeps them: durable before the answer,
// each with a UID, a resource version and a generation.
//
// On disk each object is one file, <dir>/<kind>/<namespace>/<name>.json ("_" for
// kinds without namespaces), mode 0600 since there are secrets among them. It has
// the text that was given and what the store adds to it. The text is decoded
// anew when an agent starts, as that of a file is: with the defaults and the
// rules of that agent. An object that these reject stays on disk and is reported; a
// pod that runs stays as it was accepted.
//
// A pod that is deleted stays until Ended says that nothing of it is left; all
// other objects are removed at once. A pod whose spec is changed beyond what a
// running pod can follow is replaced by another pod of the same name.
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
	// Applied is what each field manager has applied last, whole.
	Applied map[string]json.RawMessage `json:"applied,omitempty"`
	// Revisions are the templates of a workload, the present one last.
	Revisions   []Revision      `json:"revisions,omitempty"`
	file        string          // its path
	decoded     manifest.Object // nil if rejected; for a pod that runs, the pod as it was accepted
	err         error           // why the object is rejected
	description string          // manifest.Key, also of a rejected object
}

// A Store is safe for use by all goroutines. Changes are written to disk under
// its lock: they are few, and each must find the one before it done.
type Store struct {
	dir      string
	node     string
	accepted Accepted
	changed  chan struct{} // of capacity 1

	mu      sync.Mutex
	records map[string]*record // by manifest.Key; guarded by mu
	version uint64             // the last that was given; guarded by mu
	made    map[string]bool    // directories whose names are on disk; guarded by mu
}

// Accepted are the pods as an earlier agent had them run.
type Accepted interface {
	Pod(types.UID) *v1.Pod // nil if there is none
}

// Changed tells that Update has something new.
func (s *Store) Changed() <-chan struct{} { return s.changed }

func (s *Store) poke() { poke.Wake(s.changed) }

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

// Rejected reports whether there is an object of this key that nobody can show.
func (s *Store) Rejected(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[key]
	return ok && r.decoded == nil
}

// Applied returns what each field manager has applied last of an object, nil if
// none has.
func (s *Store) Applied(key string) map[string]json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.records[key]; ok {
		return r.Applied
	}
	return nil
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
