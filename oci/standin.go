package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A stand-in is an empty cgroup of the sandbox's name beside those of its containers. Monitors
// that find pods by their cgroups look for the cgroup of a pause container, by which they learn
// of the pod's network; there is no such container here. Nothing else needs it, so it is made
// only while somebody looks.
//
// Below a slice too it is a plain directory: a scope would need a process, and systemd removes
// empty cgroups with the slice. Its name is the ID and nothing else, which the kubelet takes for
// one with either driver.

// HasStandIn reports whether the sandbox can have a stand-in. It can have none, nor does it need
// one, if it has an init, whose cgroup has the sandbox's name, or a cgroup of its own.
func (sb *Sandbox) HasStandIn() bool {
	cfg := sb.record.Load().Config
	return cfg.CgroupParent != "" && !cfg.SharedPID
}

// RenewStandIn makes the stand-in, anew if it is there already: whoever watches cgroups then
// looks at the sandbox again. Only a Ready sandbox has one (else fault.WrongState), and it goes
// with the namespaces, by Unpin.
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
			return nil // in no parent of that name can there be one
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
