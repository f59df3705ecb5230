package network

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// usedDir, below CacheDir, has an empty file for each network, by name, to which a pod of ours
// was ever attached.
const usedDir = "used"

// markUsed records that a pod is about to be attached to the network called name.
func (n *Network) markUsed(name string) error {
	path := filepath.Join(n.o.CacheDir, usedDir, name)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// used reports whether a pod of ours has ever used the network of c: CNI's GC removes from a
// network whatever its caller does not claim, and another runtime of this node may have pods in
// it. ids are all attached pods; an older release attached some without recording it here.
func (n *Network) used(c *conf, ids []string) (bool, error) {
	if c.ours != nil {
		return true, nil // nobody else has a network of that name
	}
	_, err := os.Stat(filepath.Join(n.o.CacheDir, usedDir, c.list.Name))
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	for _, id := range ids {
		a, err := n.loadAttachment(id)
		if err != nil {
			continue // Detach reports it
		}
		if list, err := a.list(); err == nil && list.Name == c.list.Name {
			return true, nil
		}
	}
	return false, nil
}
