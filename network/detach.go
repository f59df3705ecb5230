package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/network/netns"
)

// Detach removes p from the network, with the configuration and the arguments of its ADD,
// whether or not its namespace still exists. Only p.ID is required; the rest is used if the
// record of the attachment is damaged. Detaching a pod that is not attached is no error. After
// an error the pod is still attached, and Detach may be called again.
func (n *Network) Detach(ctx context.Context, p Pod) error {
	if p.ID == "" {
		return fault.Invalid.Errorf("detach: no sandbox ID")
	}
	// Do not wait for a lock only to learn that there is nothing to do.
	if _, err := os.Stat(n.attachmentPath(p.ID)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ctx, unlock, err := n.lock(ctx, p.ID)
	if err != nil {
		return err
	}
	defer unlock()
	a, err := n.loadAttachment(p.ID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if errors.Is(err, fault.WrongState) {
		return err // of a newer release, not damaged
	}
	if err != nil {
		// A power cut can leave an empty file. DEL may be called without an ADD, so the best
		// guess does no harm; a sandbox that can never be stopped would.
		n.log.WarnContext(ctx, "attachment is damaged, its pod is detached by the current configuration", "sandbox", p.ID, "err", err)
		c, err := n.usable()
		if err != nil {
			return err
		}
		a = n.newAttachment(c, p)
	}
	return n.del(ctx, a)
}

// del runs DEL and removes the attachment. The caller holds its lock.
func (n *Network) del(ctx context.Context, a *attachment) error {
	list, err := a.list()
	if err != nil {
		return fmt.Errorf("configuration that sandbox %s was attached with: %w", a.ID, err)
	}
	rt := a.runtime()
	// CNI, DEL: "CNI_NETNS … if the container's network namespace no longer exists
	// … may be empty". After a reboot the pin is a plain file.
	if !netns.Pinned(rt.NetNS) {
		rt.NetNS = ""
	}
	if err := n.cni.DelNetworkList(ctx, list, rt); err != nil {
		return fmt.Errorf("network %s: %w", list.Name, err)
	}
	// libcni has removed the result, or has failed to without an error.
	result := filepath.Join(n.o.CacheDir, "results", fmt.Sprintf("%s-%s-%s", list.Name, rt.ContainerID, rt.IfName))
	for _, path := range []string{result, n.attachmentPath(a.ID)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
