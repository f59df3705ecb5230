// Package crix drives a container runtime for the agent's workers: it observes
// pods and does the actions of a plan, all through CRI and nothing else. The
// same driver runs against crispd, containerd or a fake.
//
// The runtime is the ground truth for what runs; the labels and annotations that
// crix puts on sandboxes and containers are how it finds its own again
// (labels.go). On disk it keeps, below the agent's root,
//
//	pods/<uid>/pod.json     the pod as it was accepted; written first, removed last
//	pods/<uid>/status.json  what the agent last knew of it, for the command line
//	pods/<uid>/ending       is there while the pod is being ended, likewise
//	pods/<uid>/etc-hosts    mounted at /etc/hosts
//	pods/<uid>/volumes/     as the kubelet lays them out
//
// and logs in <logs>/<namespace>_<name>_<uid>/<container>/<attempt>.log. All of
// a pod's files follow from its UID, so they are found without a record.
//
// A Driver is used by all workers at once. Each pod has one worker, so the files
// of a pod have one writer.
package crix

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"

	"github.com/crisp-cri/crisp/agent/podsync"
	internalapi "k8s.io/cri-api/pkg/apis"
)

// Options are the facts of the node.
type Options struct {
	Root           string // the agent's directory, absolute
	LogDir         string // of the pods' logs, absolute
	NodeName       string
	NodeIPs        []netip.Addr // primary first
	ResolvConf     string       // of the node; what pods get for dnsPolicy Default
	SeccompDefault bool         // RuntimeDefault for containers that name no profile
	Log            *slog.Logger
}

// A Driver carries out actions. It implements worker.Runtime but for Report.
type Driver struct {
	Options
	runtime internalapi.RuntimeService
	images  internalapi.ImageManagerService
	agent   string // value of labelAgent
	memory  int64  // of the node, in bytes

	mu    sync.Mutex
	files map[string]podsync.Key // UID of each pod with files; guarded by mu
	seen  map[podsync.Key]seen   // as of the last Observe; guarded by mu
}

// New returns a Driver and finds the files that an earlier agent has left below
// o.Root.
func New(o Options, runtime internalapi.RuntimeService, images internalapi.ImageManagerService) (*Driver, error) {
	d := &Driver{
		Options: o,
		runtime: runtime,
		images:  images,
		agent:   agentID(o.Root),
		memory:  memoryCapacity(),
		files:   map[string]podsync.Key{},
		seen:    map[podsync.Key]seen{},
	}
	return d, d.findFiles()
}

func (d *Driver) podsDir() string             { return filepath.Join(d.Root, "pods") }
func (d *Driver) podDir(uid string) string    { return filepath.Join(d.podsDir(), uid) }
func (d *Driver) hostsPath(uid string) string { return filepath.Join(d.podDir(uid), "etc-hosts") }
