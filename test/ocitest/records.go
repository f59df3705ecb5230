package ocitest

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Records keeps records as files.
type Records struct {
	dir  string
	fuse *Fuse
}

func (r *Records) path(kind, id string) string {
	return filepath.Join(r.dir, kind, id, "record.json")
}

// Keep implements oci.Records.
func (r *Records) Keep(kind, id string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return r.fuse.Step("keep", func() error {
		if err := os.MkdirAll(filepath.Dir(r.path(kind, id)), 0o700); err != nil {
			return err
		}
		return os.WriteFile(r.path(kind, id), data, 0o600)
	})
}

// Load implements oci.Records.
func (r *Records) Load(kind, id string, v any) error {
	data, err := os.ReadFile(r.path(kind, id))
	if errors.Is(err, fs.ErrNotExist) {
		return fault.NotFound.Errorf("no record %s/%s", kind, id)
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		os.Remove(r.path(kind, id)) // a checkpoint.Manager would move it aside
		return fault.NotFound.Errorf("record %s/%s was corrupt: %w", kind, id, err)
	}
	return nil
}

// IDs implements oci.Records.
func (r *Records) IDs(kind string) ([]string, error) {
	paths, err := filepath.Glob(r.path(kind, "*"))
	var ids []string
	for _, path := range paths {
		ids = append(ids, filepath.Base(filepath.Dir(path)))
	}
	return ids, err
}

// Remove implements oci.Records.
func (r *Records) Remove(kind, id string) error {
	return r.fuse.Step("remove", func() error { return os.RemoveAll(filepath.Join(r.dir, kind, id)) })
}
