package network

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// usedDir, below CacheDir, has an empty file for each network that a pod of ours was
// ever attached to, by its name.
const usedDir = "used"

// markUsed notes that a pod is about to be attached to the network called name.
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

// used says whether the network of c was ever ours to clean up: CNI's GC takes from a
// network what its caller does not claim, and another runtime of this node may have
// pods in it. Of ids, all that is attached, some may come from a release that has not
// noted it.
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
			continue // Detach tells of it
		}
		if list, err := a.list(); err == nil && list.Name == c.list.Name {
			return true, nil
		}
	}
	return false, nil
}
