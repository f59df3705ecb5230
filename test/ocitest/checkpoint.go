package ocitest

import (
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// Checkpoints of the fake executor: a frozen container is only marked as frozen,
// and keeps running; its images are one file, without which nothing is restored.
// Containers that a connection has frozen stay frozen when it ends, as if the
// executor had died too.

// Frozen returns the frozen containers, sorted.
func (x *Executor) Frozen() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Sorted(maps.Keys(x.frozen))
}

func (x *Executor) freeze(req wire.FreezeRequest) (any, []*os.File, error) {
	for _, id := range req.IDs {
		if _, err := x.find(id); err != nil {
			return nil, nil, err
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, id := range req.IDs {
		x.frozen[id] = true
	}
	return nil, nil, nil
}

func (x *Executor) thaw(req wire.ThawRequest) (any, []*os.File, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, id := range req.IDs {
		delete(x.frozen, id)
	}
	return nil, nil, nil
}

func (x *Executor) checkpoint(req wire.CheckpointRequest) (any, []*os.File, error) {
	x.mu.Lock()
	frozen := x.frozen[req.ID]
	x.mu.Unlock()
	if req.Frozen && !frozen {
		return nil, nil, fault.WrongState.Errorf("container %s is not frozen any more", req.ID)
	}
	images := filepath.Join(req.Dir, "checkpoint")
	if err := os.Mkdir(images, 0o700); err != nil {
		return nil, nil, err
	}
	return nil, nil, os.WriteFile(filepath.Join(images, "inventory.img"), []byte(req.ID), 0o600)
}

func (x *Executor) restore(req wire.RestoreRequest) (any, []*os.File, error) {
	if _, err := os.Stat(filepath.Join(req.Dir, "checkpoint", "inventory.img")); err != nil {
		return nil, nil, fault.Internal.Errorf("restore container %s: %w", req.ID, err)
	}
	return x.run(req.RunRequest)
}
