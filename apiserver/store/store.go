// Package store keeps the objects from "crisp apply" and the agent's HTTP API, as an API server
// does: durable before the answer, each with a UID, a resource version and a generation.
//
// On disk each object is one file, <dir>/<kind>/<namespace>/<name>.json ("_" for kinds without
// namespaces; ".j" for names of more than 250 bytes). Its mode is 0600, since some are secrets. It contains the applied text and the
// metadata that the store adds. The agent decodes the text again when it starts, with its own
// defaults, and applies only the rules for previously accepted objects (manifest.Options.Accepted).
// A rejected object stays on disk and is reported; a running pod stays as it was accepted.
//
// A deleted pod stays until Ended; all other objects are removed at once. If a pod's spec cannot be
// changed in place, another pod of the same name replaces it.
package store

import (
	"context"
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

// A record is an object on disk.
type record struct {
	UID        types.UID       `json:"uid"`
	Created    metav1.Time     `json:"created"`
	Generation int64           `json:"generation"`
	Version    uint64          `json:"version"`
	Deleted    *metav1.Time    `json:"deleted,omitempty"`
	Grace      *int64          `json:"grace,omitempty"` // seconds, with Deleted
	Object     json.RawMessage `json:"object"`          // as applied
	// Applied is the complete configuration that each field manager applied last.
	Applied map[string]json.RawMessage `json:"applied,omitempty"`
	// Resumed is when a suspended Job was last resumed.
	Resumed     *metav1.Time    `json:"resumed,omitempty"`
	file        string          // its path
	decoded     manifest.Object // nil if rejected; for a running pod the accepted version
	err         error           // why the object is rejected
	warnings    manifest.Errors // violations of rules that do not apply to accepted objects
	description string          // manifest.Key, even of a rejected object
}

// A Store is safe for concurrent use. It writes changes to disk under its lock: changes are few,
// and each must see the previous one completed.
type Store struct {
	dir      string
	node     string
	accepted Accepted
	changed  chan struct{} // of capacity 1

	mu      sync.Mutex
	records map[string]*record // by manifest.Key; guarded by mu
	version uint64             // the last one assigned; guarded by mu
	made    map[string]bool    // directories that are durable; guarded by mu
}

// Accepted returns pods as earlier agents accepted them (podfiles.Store).
type Accepted interface {
	Pod(types.UID) *v1.Pod    // nil without one
	Last(podsync.Key) *v1.Pod // the accepted pod of this name; nil without one
}

// Run implements source.Source.
func (s *Store) Run(ctx context.Context, updates chan<- source.Update) {
	for {
		select {
		case <-s.changed:
		case <-ctx.Done():
			return
		}
		select {
		case updates <- s.Update():
		case <-ctx.Done():
			return
		}
	}
}

// Changed receives a value when Update would return a different result.
func (s *Store) Changed() <-chan struct{} { return s.changed }

func (s *Store) poke() { poke.Wake(s.changed) }

// Update returns all objects as an update of a source, with a file for each.
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

// Get returns the object with this manifest.Key, shared and read-only, or fault.NotFound.
func (s *Store) Get(key string) (manifest.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[key]
	if !ok || r.decoded == nil {
		return nil, fault.NotFound.Errorf("there is no %s", key)
	}
	return r.decoded, nil
}

// Rejected reports whether the object of this key was rejected, and so has no decoded form.
func (s *Store) Rejected(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[key]
	return ok && r.decoded == nil
}

// Applied returns the configuration of an object that each field manager applied last; nil if there
// is none.
func (s *Store) Applied(key string) map[string]json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.records[key]; ok {
		return r.Applied
	}
	return nil
}

// Given returns the applied text of an object, or fault.NotFound.
func (s *Store) Given(key string) (json.RawMessage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[key]
	if !ok {
		return nil, fault.NotFound.Errorf("there is no %s", key)
	}
	return r.Object, nil
}
