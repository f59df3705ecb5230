package oci

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
)

// An object is an entry of a store. Its ID, name and creation time never change.
type object interface {
	ID() string
	CreatedAt() time.Time
	name() string
}

// A store finds objects by ID and by name. It does no I/O and calls nothing outside. The zero
// value is ready for use once its field what is set.
type store[T object] struct {
	what string // "container", for errors

	mu    sync.Mutex
	byID  map[string]T      // guarded by mu
	names map[string]string // name → ID, including objects being created; guarded by mu
}

// reserve takes name and id for an object that is being created; add makes it visible, and
// release frees both. An empty name needs no reservation.
func (s *store[T]) reserve(name, id string) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.byID[id]; ok {
		return nil, fault.Exists.Errorf("%s %s exists", s.what, id)
	}
	if name == "" {
		return func() {}, nil
	}
	if owner, ok := s.names[name]; ok {
		return nil, fault.Exists.Errorf("%s name %q is taken by %s", s.what, name, owner)
	}
	if s.names == nil {
		s.names = make(map[string]string)
	}
	s.names[name] = id
	return func() { s.forget(name, id) }, nil
}

// forget frees a name if it is still id's.
func (s *store[T]) forget(name, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names[name] == id {
		delete(s.names, name)
	}
}

func (s *store[T]) add(x T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = make(map[string]T)
	}
	s.byID[x.ID()] = x
}

// restore is reserve and add for objects loaded from disk. A duplicate name stays the first
// one's; it must not keep a daemon from starting.
func (s *store[T]) restore(x T, log *slog.Logger) {
	if _, err := s.reserve(x.name(), x.ID()); err != nil {
		log.Warn("name was taken already", s.what, x.ID(), "err", err)
	}
	s.add(x)
}

// drop makes x invisible, frees its name, and reports whether it was there.
func (s *store[T]) drop(x T) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.byID[x.ID()]
	delete(s.byID, x.ID())
	if s.names[x.name()] == x.ID() {
		delete(s.names, x.name())
	}
	return ok
}

// get returns the one object whose ID starts with prefix.
func (s *store[T]) get(prefix string) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found, none T
	if x, ok := s.byID[prefix]; ok {
		return x, nil
	}
	n := 0
	for id, x := range s.byID {
		if prefix == "" || !strings.HasPrefix(id, prefix) {
			continue
		}
		found = x
		if n++; n > 1 {
			return none, fault.Invalid.Errorf("%s ID %q is ambiguous", s.what, prefix)
		}
	}
	if n == 0 {
		return none, fault.NotFound.Errorf("no %s %q", s.what, prefix)
	}
	return found, nil
}

// exact returns the object of that full ID.
func (s *store[T]) exact(id string) (T, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, ok := s.byID[id]
	return x, ok
}

// byName returns the visible object of that name.
func (s *store[T]) byName(name string) (T, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, ok := s.byID[s.names[name]]
	return x, ok
}

// newest returns the latest creation time of the objects whose names differ from name only after
// the last "_": such names are attempts at the same thing, and the newest counts. Zero = no such
// object.
func (s *store[T]) newest(name string) (at time.Time) {
	end := strings.LastIndexByte(name, '_') + 1
	if end == 0 {
		return at
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for other, id := range s.names {
		if !strings.HasPrefix(other, name[:end]) || strings.Contains(other[end:], "_") {
			continue
		}
		if x, ok := s.byID[id]; ok && x.CreatedAt().After(at) {
			at = x.CreatedAt()
		}
	}
	return at
}

// list returns all objects, oldest first.
func (s *store[T]) list() []T {
	s.mu.Lock()
	all := make([]T, 0, len(s.byID))
	for _, x := range s.byID {
		all = append(all, x)
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b T) int { return a.CreatedAt().Compare(b.CreatedAt()) })
	return all
}

// Container returns the one container whose ID starts with prefix. Errors:
// fault.NotFound, fault.Invalid if it is ambiguous.
func (r *Runtime) Container(prefix string) (*Container, error) { return r.containers.get(prefix) }

// Containers returns all containers, oldest first.
func (r *Runtime) Containers() []*Container { return r.containers.list() }

// ContainerByName returns the container that was created under name.
func (r *Runtime) ContainerByName(name string) (*Container, bool) { return r.containers.byName(name) }

// Sandbox returns the one sandbox whose ID starts with prefix, in any state. Errors:
// fault.NotFound, fault.Invalid if it is ambiguous.
func (r *Runtime) Sandbox(prefix string) (*Sandbox, error) { return r.sandboxes.get(prefix) }

// Sandboxes returns all sandboxes except those being created, oldest first.
func (r *Runtime) Sandboxes() []*Sandbox {
	all := r.sandboxes.list()
	return slices.DeleteFunc(all, func(sb *Sandbox) bool { return sb.State() == SandboxCreating })
}

// Attempted reports whether a sandbox has this name, or one that differs only after the last "_".
func (r *Runtime) Attempted(name string) bool { return !r.sandboxes.newest(name).IsZero() }

// SandboxByName returns the sandbox that was created under name, in any state.
func (r *Runtime) SandboxByName(name string) (*Sandbox, bool) { return r.sandboxes.byName(name) }
