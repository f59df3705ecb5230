package network

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// GC detaches every attached pod that is not in keep, a list of Pod.ID, and makes the plugins of
// the current network release the resources of others. By CNI 1.1 that includes pods that
// another runtime of this node has attached to a network of the same name, so GC calls the
// plugins only once a pod of ours has used the network.
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
