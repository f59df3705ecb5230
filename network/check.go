package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/containernetworking/cni/libcni"

	"github.com/crisp-cri/crisp/internal/fault"
)

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
	list, err := a.list()
	if err != nil {
		return fmt.Errorf("configuration that sandbox %s was attached with: %w", a.ID, err)
	}
	err = n.cni.CheckNetworkList(ctx, list, a.runtime())
	if err != nil && !errors.Is(err, libcni.ErrorCheckNotSupp) {
		return fmt.Errorf("network %s: %w", list.Name, err)
	}
	return nil
}
