// Package network attaches the network namespaces of pods to a network through CNI plugins, and
// reads such namespaces. It knows nothing of CRI, containers or retries.
//
// Choice of the network: the first usable file of Options.ConfDir in lexical order (*.conflist,
// *.conf, *.json), as in the other runtimes. A file that cannot be used is logged and skipped,
// as in CRI-O: the node is ready if a good file follows; if none does, Status names the bad
// ones. The default network (default.go) is used only if there is no configuration file at all:
// a bad file means that another network is wanted, and pods must not come up in the wrong one. Nor
// is it used while Options.Awaited announces another one. The directory is watched; it may be
// missing, and be removed and recreated. A file in use that can no longer be parsed stays in use
// for ten seconds, as it may be being written.
//
// Records: an attachment is written to disk before ADD and removed after DEL (attachment.go),
// with the configuration that ADD used. So DEL uses that configuration even if the file has
// changed or gone since, and runs even if the daemon died during ADD or the node was rebooted.
// If ADD failed, DEL is only for the plugins that had begun. If DEL cannot work with the recorded
// configuration, that of now is tried (detach.go): correcting it must free the pod.
//
//	<CacheDir>/attached/<id>.json  by us: configuration, arguments, capabilities
//	<CacheDir>/attached/<id>.lock  locked while a plugin works on <id>
//	<CacheDir>/results/…           by libcni: the result of ADD
//	<CacheDir>/used/<network>      exists once one of crisp's pods has used the network
//
// The default network's plugin (package bridge) is called in this process; all others are
// executed.
//
// Failure: a plugin runs in its own process group and is killed with all its children when the
// context of Attach or Detach ends. That is not the context of CRI's client: the server lets a
// creation that its caller has left go on, up to its own limit (server/creations.go), because the
// kubelet repeats the call. A sandbox whose ADD hangs is not listed meanwhile, and Detach waits for
// its end. DEL after a failed ADD runs on undo.Context. While a plugin runs, this package holds no
// lock except that attachment's.
package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/crisp-cri/crisp/network/bridge"
)

// Options says where a Network finds its configuration and keeps its files. Any of the
// directories may be missing; those that we write to are created when needed.
type Options struct {
	ConfDir    string         // configurations (*.conflist, *.conf, *.json), watched
	DefaultDir string         // where to write the default configuration if ConfDir has none; "" = no default network
	Awaited    func() string  // returns why pods must wait for another network instead of using the default one; "" = they need not. May be nil
	BinDirs    []string       // plugins, searched in this order
	CacheDir   string         // attachments; must survive a reboot
	DataDir    string         // address allocations of the default network; must survive a reboot
	Instance   string         // "" for the default instance, else the instance's name, from which names and subnets are derived
	PodCIDRs   []netip.Prefix // passed on as capability ipRanges, and the default network's subnets; nil: derived from Instance
	Log        *slog.Logger   // nil means slog.Default()
}

// A Network attaches pods. Its methods may be called from any goroutine.
type Network struct {
	o    Options
	cni  *libcni.CNIConfig
	exec *runner
	log  *slog.Logger

	current atomic.Pointer[conf] // the configuration in use; never nil
	loading sync.Mutex           // one load at a time; guards watched and badSince
	watched watched

	badSince time.Time // since when the file in use cannot be parsed; zero = it can

	reaper reaper

	orphanLife time.Duration
	hasIPv6    func() bool // whether the host's new devices have it

	cancel context.CancelFunc
	ended  chan struct{}
}

// Open reads the configuration and starts to watch its directory. It does not need a valid
// configuration. It changes the host's network only if a subnet was replaced that no pod uses any
// more: it takes the bridge's address there and sets up the bridge for the new one (bridge.Leave).
// Otherwise the first Attach creates the default network's bridge and nftables table, and sets
// net.ipv4.ip_forward, which a bridge that is a gateway needs, as the standard bridge plugin does.
func Open(o Options) (*Network, error) {
	if o.ConfDir == "" || o.CacheDir == "" {
		return nil, fmt.Errorf("network needs a configuration and a cache directory")
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.ConfDir = filepath.Clean(o.ConfDir)
	if o.DefaultDir != "" {
		o.DefaultDir = filepath.Clean(o.DefaultDir)
		if o.DataDir == "" {
			return nil, fmt.Errorf("the default network needs a data directory")
		}
	}
	if err := os.MkdirAll(filepath.Join(o.CacheDir, attachedDir), 0o700); err != nil {
		return nil, err
	}
	n := &Network{o: o, log: o.Log, ended: make(chan struct{}), orphanLife: orphanLife, hasIPv6: hostHasIPv6}
	if err := n.refuseNewer(); err != nil {
		return nil, err
	}
	n.exec = &runner{log: o.Log, bridge: bridge.Plugin{Remove: n.reaper.add}}
	n.cni = libcni.NewCNIConfigWithCacheDir(o.BinDirs, o.CacheDir, n.exec)
	n.current.Store(&conf{})
	var ctx context.Context
	ctx, n.cancel = context.WithCancel(context.Background())
	n.watched.open(n.log)
	n.load()
	go n.watch(ctx)
	return n, nil
}

// Close stops watching. Pods stay attached.
func (n *Network) Close() error {
	n.cancel()
	<-n.ended
	return errors.Join(n.watched.close(), n.reaper.finish())
}
