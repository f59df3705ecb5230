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

// Detach takes p from the network: with the configuration and the arguments it
// was attached with, whether or not its namespace is still there. Only p.ID is
// needed; the rest serves if what was written down is damaged. Detaching a pod
// that is not attached is no error; after an error the pod is still attached and
// Detach may be called again.
func (n *Network) Detach(ctx context.Context, p Pod) error {
	if p.ID == "" {
		return fault.Invalid.Errorf("detach: no sandbox ID")
	}
	// Nobody waits for a lock to learn that there is nothing to do.
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
		return err // a newer release's: not damaged
	}
	if err != nil {
		// A power cut can leave an empty file. DEL may be called for what was never
		// added, so the best guess does no harm, and a sandbox that can never be
		// stopped would.
		n.log.WarnContext(ctx, "attachment is damaged, its pod is detached by today's configuration", "sandbox", p.ID, "err", err)
		c, err := n.usable()
		if err != nil {
			return err
		}
		a = n.newAttachment(c, p)
	}
	return n.del(ctx, a)
}

// del runs DEL and strikes out the attachment. The caller holds its lock.
func (n *Network) del(ctx context.Context, a *attachment) error {
	list, err := a.list()
	if err != nil {
		return fmt.Errorf("configuration that sandbox %s was attached with: %w", a.ID, err)
	}
	rt := a.runtime()
	// CNI, DEL: "CNI_NETNS … if the container's network namespace no longer
	// exists … may be empty". After a reboot the pin is a plain file.
	if !netns.Pinned(rt.NetNS) {
		rt.NetNS = ""
	}
	if err := n.cni.DelNetworkList(ctx, list, rt); err != nil {
		return fmt.Errorf("network %s: %w", list.Name, err)
	}
	// libcni has removed the result, or has failed to and does not tell.
	result := filepath.Join(n.o.CacheDir, "results", fmt.Sprintf("%s-%s-%s", list.Name, rt.ContainerID, rt.IfName))
	for _, path := range []string{result, n.attachmentPath(a.ID)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
