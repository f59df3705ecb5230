package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// GC detaches every attached pod that is not in keep, a list of Pod.ID, and makes the plugins of
// the current network release the resources of others. By CNI 1.1 that includes pods that
// another runtime of this node has attached to a network of the same name, so GC calls the
// plugins only once one of crisp's pods has used the network.
//
// Call it when no Attach is under way, as at the start of the daemon: a pod that is being
// attached and is not in keep would be detached.
func (n *Network) GC(ctx context.Context, keep []string) error {
	ids, err := n.attached()
	if err != nil {
		return err
	}
	c := n.current.Load()
	ours := false
	if c.list != nil {
		if ours, err = n.used(c, ids); err != nil {
			return err
		}
	}
	var errs []error
	for _, id := range ids {
		if slices.Contains(keep, id) {
			continue
		}
		if err := n.Detach(ctx, Pod{ID: id}); err != nil {
			errs = append(errs, fmt.Errorf("detach sandbox %s: %w", id, err))
		}
	}
	errs = append(errs, n.dropLocks())
	if !ours {
		return errors.Join(errs...)
	}
	valid := []types.GCAttachment{} // not null: CNI requires the key
	for _, id := range keep {
		valid = append(valid, types.GCAttachment{ContainerID: id, IfName: ifName})
	}
	if err := n.cni.GCNetworkList(ctx, c.list, &libcni.GCArgs{ValidAttachments: valid}); err != nil {
		errs = append(errs, fmt.Errorf("network %s: %w", c.list.Name, err))
	}
	return errors.Join(errs...)
}

// usedDir, below CacheDir, has one empty file, by its name, for each network that one of crisp's
// pods was ever attached to.
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

// used reports whether one of crisp's pods has ever used the network of c: CNI's GC removes from a
// network whatever its caller does not claim, and another runtime of this node may have pods in it.
// ids are all attached pods; an older release attached some without recording it here.
func (n *Network) used(c *conf, ids []string) (bool, error) {
	if c.ours != nil {
		return true, nil // the name is crisp's own
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
		if a.list.Name == c.list.Name {
			return true, nil
		}
	}
	return false, nil
}
