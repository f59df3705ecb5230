package crix

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	v1 "k8s.io/api/core/v1"
)

// actualResources returns what the runtime was last told of the resources of a
// pod's containers, by name. The map is nobody's to change.
func (d *Driver) actualResources(uid string) map[string]v1.ResourceRequirements {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.actual[uid]; ok {
		return known
	}
	known := map[string]v1.ResourceRequirements{}
	data, err := os.ReadFile(filepath.Join(d.podDir(uid), "actual.json"))
	if err == nil {
		err = json.Unmarshal(data, &known)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.Log.Warn("resources of a pod not known", "uid", uid, "err", err)
	}
	d.actual[uid] = known
	return known
}

// setActual records what the runtime is about to be told.
func (d *Driver) setActual(uid, container string, r v1.ResourceRequirements) error {
	all := maps.Clone(d.actualResources(uid))
	all[container] = *r.DeepCopy()
	if err := atomicfile.WriteJSON(filepath.Join(d.podDir(uid), "actual.json"), all); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.actual[uid] = all
	return nil
}
