package store

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
)

// Open reads what is in dir. If the object of a pod that was accepted is rejected, the pod
// as it was accepted is what is wanted.
func Open(dir, node string, accepted Accepted, log *slog.Logger) (*Store, error) {
	s := &Store{
		dir: dir, node: node, accepted: accepted, changed: make(chan struct{}, 1),
		records: map[string]*record{}, made: map[string]bool{},
		// Versions only grow, whatever was the last one that is gone by now.
		version: uint64(time.Now().UnixMilli()),
	}
	if err := atomicfile.MakeDirs(dir, 0o700); err != nil {
		return nil, err
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			return err
		}
		r := &record{file: path, description: s.keyOf(path)}
		if r.err = atomicfile.ReadJSON(path, r); r.err == nil { // half a file cannot be: it was renamed into place
			s.decode(r)
		}
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

// decode fills in r.decoded or r.err, or both of a pod that runs.
func (s *Store) decode(r *record) {
	objects, _, err := manifest.Read("", r.Object, s.options(manifest.Ignore))
	if err != nil || len(objects) != 1 {
		if r.err = plain(err); err == nil {
			r.err = fault.Invalid.Errorf("want one object, got %d", len(objects))
		}
		if pod := s.accepted.Pod(r.UID); pod != nil && "pod "+pod.Namespace+"/"+pod.Name == r.description {
			r.decoded = pod.DeepCopy()
			s.stamp(r)
		}
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

// path is where an object is kept. Names are checked by then: they hold no "/".
func (s *Store) path(o manifest.Object) string {
	namespace := o.GetNamespace()
	if namespace == "" {
		namespace = "_"
	}
	return filepath.Join(s.dir, strings.ToLower(manifest.KindOf(o)), namespace, o.GetName()+".json")
}

func (s *Store) saveLocked(r *record) error {
	if err := s.makeDirsLocked(filepath.Dir(r.file)); err != nil {
		return err
	}
	if err := atomicfile.SaveJSON(r.file, r); err != nil {
		return fmt.Errorf("keep %s: %w", r.description, err)
	}
	s.records[r.description] = r
	s.poke()
	return nil
}

// makeDirsLocked makes the directory of a namespace, that of its kind, and has their
// names on disk.
func (s *Store) makeDirsLocked(dir string) error {
	if _, err := os.Stat(dir); err == nil && s.made[dir] {
		return nil
	}
	// They may be there from a try that failed, or of an agent that was killed.
	for _, dir := range []string{filepath.Dir(dir), dir} {
		if err := atomicfile.MakeDirs(dir, 0o700); err != nil {
			return err
		}
	}
	s.made[dir] = true
	return nil
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
