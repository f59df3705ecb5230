// Package network attaches network namespaces to the network of the pods.
package network

import (
	"log/slog"
	"net/netip"
)

// Options says where a Network finds its configuration and keeps its files. All
// directories may be missing; those that are ours are made when needed.
type Options struct {
	ConfDir    string         // configurations (*.conflist, *.conf, *.json), watched
	DefaultDir string         // where the default configuration is written if ConfDir has none; "" means never
	BinDirs    []string       // plugins, searched in this order
	CacheDir   string         // results and configurations of ADD, as libcni keeps them; must survive a reboot
	DataDir    string         // address allocations of the default network; must survive a reboot
	Instance   string         // "" for the default instance, else a short hash: bridge, nftables table and subnet follow from it
	PodCIDRs   []netip.Prefix // subnets of the default network, at most one per family; nil: chosen by Instance
	Log        *slog.Logger   // nil means slog.Default()
}

// A Network attaches pods. Its methods may be called from any goroutine.
type Network struct {
	o Options
}

// Open starts to watch the configuration directory. It neither needs a valid
// configuration nor changes anything of the host's network.
func Open(o Options) (*Network, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Network{o: o}, nil
}

// Close ends the watch. The pods' networks stay as they are.
func (n *Network) Close() error { return nil }

// Destroy removes the bridge and the nftables table of the default network. It
// is fault.WrongState while a pod is attached.
func (n *Network) Destroy() error { return nil }
