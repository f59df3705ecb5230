package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A stand-in is an empty cgroup named after the sandbox, beside those of its containers.
// Monitors that find pods by their cgroups look for the cgroup of a pause container to learn
// about the pod's network; crisp has no such container. Nothing else needs it, so it exists only
// while somebody looks.
//
// Below a slice, too, it is a plain directory: a scope would need a process, and systemd removes
// empty cgroups with the slice. Its name is just the ID, which the kubelet recognizes with
// either driver.

// HasStandIn reports whether the sandbox can have a stand-in. It cannot, and needs none, if it
// has an init, whose cgroup has the sandbox's name, or a cgroup of its own.
func (sb *Sandbox) HasStandIn() bool {
	cfg := sb.record.Load().Config
	return cfg.CgroupParent != "" && !cfg.SharedPID
}

// RenewStandIn creates the stand-in, or replaces it: whoever watches cgroups then examines the
// sandbox again. Only a Ready sandbox has one (else fault.WrongState), and Unpin removes it with
// the namespaces.
func (sb *Sandbox) RenewStandIn() error {
	if !sb.HasStandIn() {
		return fault.Invalid.Errorf("sandbox %s has no stand-in", sb.id)
	}
	sb.mu.Lock() // Unpin comes after Ready
	defer sb.mu.Unlock()
	if st := sb.State(); st != SandboxReady {
		return fault.WrongState.Errorf("sandbox %s is %s: it has no stand-in", sb.id, st)
	}
	return sb.setStandIn(false, true)
}

// RemoveStandIn removes the stand-in, if there is one.
func (sb *Sandbox) RemoveStandIn() error {
	if !sb.HasStandIn() {
		return nil
	}
	return sb.setStandIn(false)
}

func (sb *Sandbox) setStandIn(presence ...bool) error {
	for _, present := range presence {
		if err := sb.rt.host.EmptyCgroup(sb.CgroupParent(), sb.id, present); err != nil {
			return fmt.Errorf("stand-in of sandbox %s: %w", sb.id, err)
		}
	}
	return nil
}

// EmptyCgroup implements Host.
func (k *kernel) EmptyCgroup(parent, name string, present bool) error {
	dirs, err := cgroupDirs(parent)
	if !present {
		if err != nil {
			return nil // there can be none without a parent
		}
		for controller, dir := range dirs {
			dirs[controller] = filepath.Join(dir, name)
		}
		return removeCgroups(name, dirs)
	}
	errs := []error{err}
	for _, dir := range dirs { // several controllers may share a directory
		err := os.Mkdir(filepath.Join(dir, name), 0o755)
		if !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) { // no such hierarchy, or no such parent
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
