package runtime

import (
	"path/filepath"

	"github.com/crisp-cri/crisp/oci/executor/shim"
)

// A shim closes the FIFOs of a container that has ended. What is in them is lost then, unless we have
// them open or the shim does so unknowingly, by its Keeper.

// keep has the shim keep what the container writes, whether we live or not. That it cannot is told once.
func (t *Task) keep() {
	err := t.withKeeper(func(k *shim.Keeper) error { return k.Put(t.id, t.outputs()...) })
	l := t.link()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && !l.unkept {
		l.unkept = true
		t.all.log.Warn("output of a shim's containers may be lost if they end while no executor runs", "container", t.id, "shim", t.Path, "err", err)
	}
}

// letGo undoes keep, once all has been read. A name in a Keeper that is not a container of the pod is from
// a process that has broken out of one.
func (t *Task) letGo() {
	if t.Sandbox == t.id {
		return // the shim ends soon
	}
	_ = t.withKeeper(func(k *shim.Keeper) error { // the shim may be gone
		return k.Renew(func(name string) []string {
			if name == t.id || filepath.Base(name) != name {
				return nil
			}
			if other := t.all.find(name); other != nil && other.Sandbox == t.Sandbox && !other.Deleted {
				return other.outputs()
			}
			return nil
		})
	})
}

// outputs are the FIFOs that the container writes to.
func (t *Task) outputs() []string {
	fifos := t.fifos()
	return []string{fifos.Stdout, fifos.Stderr}
}

// withKeeper lends the Keeper of t's shim.
func (t *Task) withKeeper(do func(*shim.Keeper) error) error {
	l := t.link()
	l.keeping.Lock()
	defer l.keeping.Unlock()
	k, err := shim.OpenKeeper(t.ShimPID, t.Keeper)
	if err != nil {
		return err
	}
	defer k.Close()
	return do(k)
}
