// Package ephemeral keeps the ephemeral containers that were added to running pods (kubectl
// debug), in a file for each pod, so that they outlive the agent. Manifests cannot have any.
package ephemeral

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A Store has the ephemeral containers of all pods, as a file UID.json for each pod that has
// any: a JSON list.
type Store struct {
	dir    string
	wanted *desired.Manager
	log    *slog.Logger
}

// Open passes the ephemeral containers of the accepted pods to wanted, and removes the files of
// other pods. A file that cannot be read stays, and is only logged: its containers run on, but
// are not shown.
func Open(dir string, accepted []*v1.Pod, wanted *desired.Manager, log *slog.Logger) *Store {
	s := &Store{dir: dir, wanted: wanted, log: log}
	warn := func(path string, err error) {
		s.log.Warn("ephemeral containers of a pod not known", "path", path, "err", err)
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		warn(s.dir, err)
	}
	there := map[string]bool{}
	for _, pod := range accepted {
		there[string(pod.UID)] = true
	}
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		uid := strings.TrimSuffix(e.Name(), ".json")
		if !there[uid] {
			if err := os.Remove(path); err != nil {
				warn(path, err)
			}
			continue
		}
		var list []v1.EphemeralContainer
		if err := atomicfile.ReadJSON(path, &list); err != nil {
			warn(path, err)
			continue
		}
		s.wanted.SetEphemeral(types.UID(uid), list)
	}
	return s
}

// Set sets the ephemeral containers of a pod, for as long as the pod exists. Invalid ones are a
// fault.Invalid.
func (s *Store) Set(pod *v1.Pod, containers []v1.EphemeralContainer) error {
	list, err := manifest.Ephemeral(pod, containers)
	if err != nil {
		return fault.Invalid.Errorf("%v", err)
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	if err := atomicfile.SaveJSON(filepath.Join(s.dir, string(pod.UID)+".json"), list); err != nil {
		return err
	}
	s.wanted.SetEphemeral(pod.UID, list)
	return nil
}
