package store

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	batchv1 "k8s.io/api/batch/v1"
)

// Open reads the objects in dir. A rejected pod that an earlier agent had accepted stays wanted.
func Open(dir, node string, accepted Accepted, log *slog.Logger) (*Store, error) {
	s := &Store{
		dir: dir, node: node, accepted: accepted, changed: make(chan struct{}, 1),
		records: map[string]*record{}, made: map[string]bool{},
		// Versions only grow, even past that of an object that was deleted.
		version: uint64(time.Now().UnixMilli()),
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if path == dir && errors.Is(err, fs.ErrNotExist) {
			return nil // nothing has been stored
		}
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			return err
		}
		r := &record{file: path, description: s.keyOf(path)}
		if r.err = atomicfile.ReadJSON(path, r); r.err == nil { // complete, because files are replaced by rename
			s.decode(r)
		}
		if r.err != nil && r.UID == "" { // the file has no record
			s.regain(r)
		}
		if r.err != nil {
			log.Error("stored object rejected", "object", r.description, "err", r.err)
		}
		s.version = max(s.version, r.Version)
		s.records[r.description] = r
		return nil
	})
	s.poke()
	return s, err
}

// keyOf returns the key of the object in the file at path. It uses the path alone, since the object
// may be rejected.
func (s *Store) keyOf(path string) string {
	rel := strings.TrimPrefix(strings.TrimSuffix(path, filepath.Ext(path)), s.dir+"/")
	kind, name, _ := strings.Cut(rel, "/")
	return kind + " " + strings.TrimPrefix(name, "_/")
}

// decode sets r.decoded or r.err. For a rejected pod that runs it sets both, as regain does.
func (s *Store) decode(r *record) {
	o := s.options(manifest.Ignore)
	o.Accepted = true
	objects, warnings, err := manifest.Read("", r.Object, o)
	r.warnings = of(r.description, warnings)
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

// regain restores the pod of an unreadable record as it was last accepted, including its deletion.
func (s *Store) regain(r *record) {
	name, isPod := strings.CutPrefix(r.description, "pod ")
	if !isPod {
		return
	}
	var key podsync.Key
	key.Namespace, key.Name, _ = strings.Cut(name, "/")
	if pod := s.accepted.Last(key); pod != nil && pod.Annotations[manifest.AnnotationSource] == manifest.SourceAPI {
		r.UID, r.Created, r.Generation, r.decoded = pod.UID, pod.CreationTimestamp, pod.Generation, pod.DeepCopy()
		r.Deleted, r.Grace = pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds
		s.stamp(r)
	}
}

// stamp sets the metadata that the store adds to the decoded object.
func (s *Store) stamp(r *record) {
	o := r.decoded
	o.SetUID(r.UID)
	o.SetCreationTimestamp(r.Created)
	o.SetGeneration(r.Generation)
	o.SetResourceVersion(strconv.FormatUint(r.Version, 10))
	o.SetDeletionTimestamp(r.Deleted)
	o.SetDeletionGracePeriodSeconds(r.Grace)
	annotations := map[string]string{}
	maps.Copy(annotations, o.GetAnnotations()) // a damaged pod.json may have no annotations
	annotations[manifest.AnnotationFile] = r.description
	o.SetAnnotations(annotations)
	if job, ok := o.(*batchv1.Job); ok {
		job.Status.StartTime = r.Resumed // the deadline counts from here, as in Kubernetes
	}
}

func (s *Store) options(u manifest.Unknown) manifest.Options {
	return manifest.Options{NodeName: s.node, Source: manifest.SourceAPI, Unknown: u}
}

// path returns the file of an object. The name was validated: it has no "/", and no more than 253
// of the 255 bytes that a file's may have.
func (s *Store) path(o manifest.Object) string {
	namespace := o.GetNamespace()
	if namespace == "" {
		namespace = "_"
	}
	suffix := ".json"
	if len(o.GetName()) > 250 {
		suffix = ".j"
	}
	return filepath.Join(s.dir, strings.ToLower(manifest.KindOf(o)), namespace, o.GetName()+suffix)
}

func (s *Store) saveLocked(r *record) error {
	if err := s.makeDirsLocked(filepath.Dir(r.file)); err != nil {
		return err
	}
	if err := atomicfile.SaveJSON(r.file, r); err != nil {
		return fmt.Errorf("save %s: %w", r.description, err)
	}
	s.records[r.description] = r
	s.poke()
	return nil
}

// makeDirsLocked makes the directories of a kind and a namespace durable.
func (s *Store) makeDirsLocked(dir string) error {
	if _, err := os.Stat(dir); err == nil && s.made[dir] {
		return nil
	}
	// After a failure or a crash they may exist without being durable.
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
