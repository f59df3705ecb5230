package agent

import (
	"encoding/json"
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

// ephemeralContainers are those that pods were given after their start (kubectl debug), kept in a file for
// each pod.
type ephemeralContainers struct {
	dir    string
	wanted *desired.Manager
	log    *slog.Logger
}

// Set makes these the ephemeral containers of a pod, for as long as it lives.
func (d *ephemeralContainers) Set(pod *v1.Pod, containers []v1.EphemeralContainer) error {
	list, err := manifest.Ephemeral(pod, containers)
	if err != nil {
		return fault.Invalid.Errorf("%v", err)
	}
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(d.dir, string(pod.UID)+".json"), data, 0o600); err != nil {
		return err
	}
	d.wanted.SetEphemeral(pod.UID, list)
	return nil
}

// load takes in the ephemeral containers that pods were given earlier; those of pods that
// were not accepted are forgotten. What cannot be read stays as it is: such a container
// runs on and is not shown, and all else goes on.
func (d *ephemeralContainers) load(accepted []*v1.Pod) {
	warn := func(path string, err error) {
		d.log.Warn("ephemeral containers of a pod not known", "path", path, "err", err)
	}
	entries, err := os.ReadDir(d.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		warn(d.dir, err)
	}
	there := map[string]bool{}
	for _, pod := range accepted {
		there[string(pod.UID)] = true
	}
	for _, e := range entries {
		path := filepath.Join(d.dir, e.Name())
		uid := strings.TrimSuffix(e.Name(), ".json")
		if !there[uid] {
			if err := os.Remove(path); err != nil {
				warn(path, err)
			}
			continue
		}
		data, err := os.ReadFile(path)
		var list []v1.EphemeralContainer
		if err == nil {
			err = json.Unmarshal(data, &list)
		}
		if err != nil {
			warn(path, err)
			continue
		}
		d.wanted.SetEphemeral(types.UID(uid), list)
	}
}
