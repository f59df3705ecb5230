// Package rootfs mounts root file systems of images.
//
// Each has a key, which its user chooses, and is one overlay mount of the image's layers, with
// or without a writable layer on top. Its lease is written before the mount and outlives both
// the mount and the daemon: the layers stay as long as a lease exists, even if the image is
// removed. The writable layer is only as durable as the mount: it is never synced, and void
// after a restart of the machine, as no container survives that.
//
// On disk:
//
//	<root>/rw/<key>/lease.json          the layers of the root file system
//	<root>/rw/<key>/{fs,work}/          the writable layer
//	<root>/rw/<key>/dirs/               directories above the layers, see layer.Store.Inherit
//	<root>/rw/<key>/volumes/<n>/        the container's own directories in place of the image's
//	<root>/points/                      a layer of mount points, which all share (points.go)
//	<state>/<key>/root                  the mount
//	<state>/.layers/<diff ID>           the mount of a layer that is an EROFS file system, see lower
//
// The package also extracts what a container has changed (Diff), and applies it (Apply).
package rootfs

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/crisp-cri/crisp/image/layer"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/lazy"
	"github.com/opencontainers/go-digest"
)

// A Store manages the root file systems below one directory, by the keys of their users. Its
// methods may be called concurrently.
type Store struct {
	dir     string // of the leases
	state   string // of the mounts
	empty   string // a layer without files
	staging string
	boot    string // of the machine
	layers  *layer.Store
	image   func(ref string) (Image, error)
	log     *slog.Logger

	private    func() (struct{}, error) // makes state private, once
	points     func() (string, error)   // makes the layer of mount points, once
	life       context.Context
	stop       context.CancelFunc // of walks
	background sync.WaitGroup     // walks

	mounting sync.Mutex                   // of layers
	idle     map[digest.Digest]*idleLayer // guarded by mounting

	mu      sync.Mutex
	m       map[string]*lease // guarded by mu
	toWalk  []walk            // guarded by mu
	walkers int               // guarded by mu
}

// An Image is the part of an image that gets mounted.
type Image struct {
	ID       string          // "sha256:" and the digest of its config, in hex
	Layers   []digest.Digest // from the lowest
	Dirs     []layer.DirAttr // go on top of them, see layer.Store.Inherit
	Artifact bool            // only mounted read-only; not a root file system
}

// Options are the arguments of Open. All are required.
type Options struct {
	Root   string // on the disk that holds layers; its directories rw, staging and empty exist
	State  string // mounts; a directory that is empty after a reboot, and that users of user namespaces can reach
	Layers *layer.Store
	Image  func(ref string) (Image, error) // finds an image, or fails with fault.NotFound
	Life   context.Context                 // of background work
	Log    *slog.Logger
}

// Open finds the root file systems on disk, mounted or not, and retains their layers.
func Open(o Options) (*Store, error) {
	ls := &Store{
		dir: filepath.Join(o.Root, "rw"), state: o.State, empty: filepath.Join(o.Root, "empty"), staging: filepath.Join(o.Root, "staging"),
		layers: o.Layers, image: o.Image, log: o.Log,
		private: lazy.Value(func() (struct{}, error) { return struct{}{}, makePrivate(o.State) }),
		points:  lazy.Value(func() (string, error) { return makePoints(filepath.Join(o.Root, "points")) }),
		m:       make(map[string]*lease), idle: make(map[digest.Digest]*idleLayer),
	}
	var err error
	if ls.boot, err = kernel.BootID(); err != nil {
		return nil, err
	}
	if err := ls.findLeases(); err != nil {
		return nil, err
	}
	ls.life, ls.stop = context.WithCancel(o.Life)
	ls.sweepLayers()
	return ls, nil
}

// MeasureAll walks all writable layers in the background, so that their usage is known
// soon after startup.
func (ls *Store) MeasureAll() { ls.background.Go(ls.refreshAll) }

// Close ends background work. Mounts stay.
func (ls *Store) Close() {
	ls.stop()
	ls.background.Wait()
	ls.mounting.Lock()
	defer ls.mounting.Unlock()
	for id := range ls.idle {
		ls.endIdle(id)
	}
}

// findLeases reads the leases on disk. A lease that cannot be read, or whose layers are missing,
// is kept as a key for its owner to remove.
func (ls *Store) findLeases() error {
	dirs, err := os.ReadDir(ls.dir)
	if err != nil {
		return fmt.Errorf("list root file systems: %w", err)
	}
	for _, d := range dirs {
		l := &lease{}
		data, err := atomicfile.Read(filepath.Join(ls.path(d.Name()), "lease.json"))
		if err != nil && !atomicfile.Damaged(err) {
			return fmt.Errorf("read lease %s: %w", d.Name(), err) // its layers would be dropped
		}
		if err == nil {
			err = json.Unmarshal(data, &l.record)
		}
		if err == nil {
			l.layers, err = ls.layers.RetainAll(l.record.Layers)
		}
		if err != nil {
			ls.log.Warn("root file system has lost its layers", "rootfs", d.Name(), "err", err)
		}
		ls.m[d.Name()] = l
	}
	return nil
}
