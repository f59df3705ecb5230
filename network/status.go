package network

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/network/bridge"
)

// statusTimeout bounds the STATUS of all plugins of a network together.
const statusTimeout = 5 * time.Second

// statusGrace is how long plugins that were healthy may report an error before the node is not
// ready: their agents are restarted and upgraded.
const statusGrace = 30 * time.Second

// health keeps the answers of one configuration's plugins to STATUS.
type health struct {
	last  atomic.Pointer[answer]
	first chan struct{} // closed when last has a value

	failing time.Time // since when plugins that were healthy report an error; used by askPlugins only
}

type answer struct{ err error }

// newHealth returns nil if the plugins of list need not be asked: STATUS came with CNI 1.1.
func newHealth(list *libcni.NetworkConfigList) *health {
	if ok, err := version.GreaterThanOrEqualTo(list.CNIVersion, "1.1.0"); err != nil || !ok {
		return nil
	}
	return &health{first: make(chan struct{})}
}

// Status returns nil if pods can be attached (CRI's condition NetworkReady). The text of the
// error is meant for that condition's message.
//
// It does not wait for plugins: those that support STATUS are asked in the background, and only
// their first answer is awaited, for a second.
func (n *Network) Status() error {
	c, err := n.usable()
	if err != nil {
		return err
	}
	for _, p := range c.list.Plugins {
		if _, err := n.exec.FindInPath(p.Network.Type, n.o.BinDirs); err != nil {
			return fault.Unavailable.Errorf("network %s of %s: %w", c.list.Name, c.file, err)
		}
	}
	if c.ours != nil {
		if err := bridge.Ready(); err != nil {
			return fmt.Errorf("network %s: %w", c.list.Name, err)
		}
	}
	if c.plugins == nil {
		return nil
	}
	select {
	case <-c.plugins.first:
	case <-time.After(time.Second):
		return fault.Unavailable.Errorf("network %s of %s: its plugins have not reported their status yet", c.list.Name, c.file)
	}
	if err := c.plugins.last.Load().err; err != nil {
		return fault.Unavailable.Errorf("network %s of %s: %w", c.list.Name, c.file, err)
	}
	return nil
}

// askPlugins asks the plugins for their STATUS and keeps the answer.
func (n *Network) askPlugins(ctx context.Context) {
	c := n.current.Load()
	if c.plugins == nil {
		return
	}
	limited, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	err := n.cni.GetStatusNetworkList(limited, c.list)
	c.plugins.note(ctx, n.log, err)
}

// note keeps an answer. An error of plugins that were healthy counts once it has lasted for
// statusGrace.
func (h *health) note(ctx context.Context, log *slog.Logger, err error) {
	before := h.last.Load()
	if err != nil && before != nil && before.err == nil {
		if h.failing.IsZero() {
			h.failing = time.Now()
			log.WarnContext(ctx, "plugins are not ready", "err", err)
		}
		if time.Since(h.failing) < statusGrace {
			return
		}
	}
	h.failing = time.Time{}
	if h.last.Swap(&answer{err}) == nil {
		close(h.first)
	}
}
