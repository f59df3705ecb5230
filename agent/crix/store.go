package crix

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Options say where the files are.
type StoreOptions struct {
	Root     string // the agent's directory, absolute
	LogDir   string // of the pods' logs, absolute
	LogLinks string // directory of links to the containers' logs, for log shippers; "" for none
	Log      *slog.Logger
}

// A Store keeps the files of pods. It is safe for use by all goroutines, but the files of
// one pod have one writer.
type Store struct {
	o StoreOptions

	mu     sync.Mutex
	pods   map[string]*v1.Pod                            // each pod with files, by UID; guarded by mu
	actual map[string]map[string]v1.ResourceRequirements // by UID and container; guarded by mu
	ending map[string]bool                               // pods whose end has begun, by UID; guarded by mu
}

// Open returns a Store and finds the files that an earlier agent has left below o.Root.
func Open(o StoreOptions) (*Store, error) {
	s := &Store{o: o, pods: map[string]*v1.Pod{}, actual: map[string]map[string]v1.ResourceRequirements{}, ending: map[string]bool{}}
	return s, s.find()
}

func (s *Store) dir() string { return filepath.Join(s.o.Root, "pods") }

// Dir is the directory of a pod's files.
func (s *Store) Dir(uid string) string { return filepath.Join(s.dir(), uid) }

// MakeLogDir makes the directory of a pod's logs.
func (s *Store) MakeLogDir(pod *v1.Pod) error { return os.MkdirAll(s.LogDir(pod), 0o755) }

// Remove removes the files and the logs of a pod of which nothing runs.
func (s *Store) Remove(uid types.UID) error {
	pod := s.Pod(uid)
	if pod == nil {
		return nil
	}
	if err := os.RemoveAll(s.LogDir(pod)); err != nil {
		return err
	}
	if err := s.removeDir(string(uid)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, string(uid))
	delete(s.actual, string(uid))
	delete(s.ending, string(uid))
	return nil
}
