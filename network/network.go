// Package network attaches the network namespaces of pods to a network with CNI
// plugins, and looks into such namespaces. It knows nothing of CRI, of containers
// and of retries.
//
// Which network. The first usable file of Options.ConfDir in lexical order
// (*.conflist, *.conf, *.json), as with the other runtimes. A file that cannot be
// used is logged and passed over, as CRI-O does: the node is ready if a good
// file comes after it; if none does, Status names the bad ones. Only if there is
// no configuration file at all does the network of our own apply (default.go): a
// bad file means that somebody wants another network, and pods must not come up
// in the wrong one. Nor does it while Options.Awaited tells of another one to come. The directory is watched, and may come, go and come again. The
// file in use stays so for ten seconds when it cannot be parsed any more: somebody may be
// writing it.
//
// What is kept. An attachment is written down before ADD and struck out after
// DEL (attachment.go), with the configuration that ADD used. So DEL uses that
// configuration even if the file has changed or gone since, and happens even if
// the daemon died in the middle of ADD or the node was rebooted:
//
//	<CacheDir>/attached/<id>.json  by us: configuration, arguments, capabilities
//	<CacheDir>/attached/<id>.lock  locked while a plugin works on <id>
//	<CacheDir>/results/…           by libcni: the result of ADD
//	<CacheDir>/used/<network>      a pod of ours has been in it
//
// The default network's plugin (package bridge) is called in this process; all
// others are executed.
//
// Failure. A plugin runs in a process group of its own and is killed with all
// its children when the caller's context ends. DEL after a failed ADD runs on
// undo.Context. No lock of this package is held while a plugin runs, but for the
// one of that attachment.
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

// Options says where a Network finds its configuration and keeps its files. All
// directories may be missing; those that are ours are made when needed.
type Options struct {
	ConfDir    string         // configurations (*.conflist, *.conf, *.json), watched
	DefaultDir string         // where the default configuration is written if ConfDir has none; "" means never
	Awaited    func() string  // says why another network is to come, for which pods wait instead of using the default one; "" = none is. May be nil
	BinDirs    []string       // plugins, searched in this order
	CacheDir   string         // what is attached; must survive a reboot
	DataDir    string         // address allocations of the default network; must survive a reboot
	Instance   string         // "" for the default instance, else what tells it from others: names and subnets follow from it
	PodCIDRs   []netip.Prefix // passed on as capability ipRanges, and the default network's subnets; nil: those follow from Instance
	Log        *slog.Logger   // nil means slog.Default()
}

// A Network attaches pods. Its methods may be called from any goroutine.
type Network struct {
	o    Options
	cni  *libcni.CNIConfig
	exec *runner
	log  *slog.Logger

	current atomic.Pointer[conf] // what the directory says; never nil
	loading sync.Mutex           // one load at a time; guards watched and badSince
	watched watched

	badSince time.Time // when the file in use became unreadable; zero = it is not

	reaper reaper

	orphanLife time.Duration
	hasIPv6    func() bool // of the host's new devices

	cancel context.CancelFunc
	ended  chan struct{}
}

// Open reads the configuration and starts to watch its directory. It needs no
// valid configuration and changes nothing of the host's network: the default
// network's bridge and nftables table are made when the first pod is attached,
// which also sets net.ipv4.ip_forward, as a bridge that is a gateway needs and
// users of the standard bridge plugin are used to.
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

// Close ends the watch. Pods stay attached.
func (n *Network) Close() error {
	n.cancel()
	<-n.ended
	return errors.Join(n.watched.close(), n.reaper.finish())
}
