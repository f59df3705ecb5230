package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/network/netns"
)

// Detach removes p from the network, with the configuration and the arguments of its ADD,
// whether or not its namespace still exists. If that configuration cannot serve (del), Detach
// uses the current one of the same network, which may have been corrected. Only p.ID is required;
// the rest is used if the record of the attachment is damaged. Detaching a pod that is not attached
// is no error. After an error the pod is still attached, and Detach may be called again.
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
//
// The recorded configuration cannot serve if a plugin refuses it as it is, or if ADD failed with
// it too. Any other plugin that fails must be asked again with it: it alone knows what to delete.
func (n *Network) del(ctx context.Context, a *attachment) error {
	list := *a.list
	if a.Begun != nil && *a.Begun < len(list.Plugins) {
		list.Plugins = list.Plugins[:*a.Begun]
	}
	rt := a.runtime()
	// CNI, DEL: "CNI_NETNS … if the container's network namespace no longer exists
	// … may be empty". After a reboot the pin is a plain file.
	if !netns.Pinned(rt.NetNS) {
		rt.NetNS = ""
	}
	err := n.cni.DelNetworkList(ctx, &list, rt)
	if err != nil && ctx.Err() == nil && (a.Begun != nil || refused(err)) {
		now := n.load().list
		if now != nil && now.Name == list.Name && !bytes.Equal(compact(now.Bytes), compact(a.Config)) {
			n.log.WarnContext(ctx, "pod is detached by the current configuration", "sandbox", a.ID, "network", list.Name, "err", err)
			err = n.cni.DelNetworkList(ctx, now, rt)
		}
	}
	if err != nil {
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

// compact returns valid JSON as a record has it.
func compact(data json.RawMessage) []byte {
	data, _ = json.Marshal(data)
	return data
}

// Check asks the plugins whether p is still attached as it was, with the configuration and the
// result of ADD. A network older than CHECK (CNI 0.4) is assumed to be intact. The error is
// fault.NotFound if p is not attached.
func (n *Network) Check(ctx context.Context, p Pod) error {
	ctx, unlock, err := n.lock(ctx, p.ID)
	if err != nil {
		return err
	}
	defer unlock()
	a, err := n.loadAttachment(p.ID)
	if errors.Is(err, fs.ErrNotExist) {
		return fault.NotFound.Errorf("sandbox %s is not attached to a network", p.ID)
	}
	if err != nil {
		return err
	}
	err = n.cni.CheckNetworkList(ctx, a.list, a.runtime())
	if err != nil && !errors.Is(err, libcni.ErrorCheckNotSupp) {
		return fmt.Errorf("network %s: %w", a.list.Name, err)
	}
	return nil
}
