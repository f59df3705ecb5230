// Package rootfs mounts root file systems of images.
//
// Each has a key, which its user chooses, and is one overlay mount of the image's layers,
// with a writable layer on top or without. It stands on a lease, which is written before
// the mount and outlives it, and the daemon: the layers stay while there is one, even if
// the image is removed.
//
// On disk:
//
//	<root>/rw/<key>/lease.json          the layers that a root file system stands on
//	<root>/rw/<key>/{fs,work}/          the writable layer
//	<root>/rw/<key>/dirs/               directories on top of the layers, see layer.Store.Inherit
//	<root>/rw/<key>/volumes/<n>/        directories of the container's own in place of the image's
//	<state>/<key>/root                  the mount
//
// Here is also what a container has changed (Diff), and the way back (Apply).
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
	"github.com/opencontainers/go-digest"
)

// A Store is the root file systems below one directory, by the key of their user. All its
// methods may be called at the same time.
type Store struct {
	dir     string // of the leases
	state   string // of the mounts
	empty   string // a layer without files
	staging string
	layers  *layer.Store
	image   func(ref string) (Image, error)
	log     *slog.Logger

	private    func() error // makes state private, once
	life       context.Context
	stop       context.CancelFunc // of walks
	background sync.WaitGroup     // walks

	mu sync.Mutex
	m  map[string]*lease // guarded by mu
}

// An Image is what is mounted of an image.
type Image struct {
	ID       string          // "sha256:" and the digest of its config, in hex
	Layers   []digest.Digest // from the lowest
	Dirs     []layer.DirAttr // that are put on top of them, see layer.Store.Inherit
	Artifact bool            // it can be mounted read-only, but is no root file system
}

// Options say where root file systems are kept, and what of. All are required.
type Options struct {
	Root   string // on the disk that holds layers; the directories rw, staging and empty in it are there
	State  string // mounts; a directory that a reboot empties, and users of user namespaces can reach
	Layers *layer.Store
	Image  func(ref string) (Image, error) // finds an image; fault.NotFound if there is none
	Life   context.Context                 // of work in the background, which ends with it
	Log    *slog.Logger
}

// Open finds the root file systems on disk, mounted or not, and holds their layers.
// What writable layers occupy is found out in the background.
func Open(o Options) (*Store, error) {
	ls := &Store{
		dir: filepath.Join(o.Root, "rw"), state: o.State, empty: filepath.Join(o.Root, "empty"), staging: filepath.Join(o.Root, "staging"),
		layers: o.Layers, image: o.Image, log: o.Log,
		private: sync.OnceValue(func() error { return makePrivate(o.State) }),
		m:       make(map[string]*lease),
	}
	if err := ls.findLeases(); err != nil {
		return nil, err
	}
	ls.life, ls.stop = context.WithCancel(o.Life)
	return ls, nil
}

// MeasureAll has all writable layers walked in the background, so that what they occupy is
// known soon after a start.
func (ls *Store) MeasureAll() { ls.background.Go(ls.refreshAll) }

// Close ends the work in the background. Mounts stay.
func (ls *Store) Close() {
	ls.stop()
	ls.background.Wait()
}

// findLeases reads the leases on disk. One that cannot be read, or whose layers
// are not there, is kept as a key, for its owner to remove.
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
			l.held, err = ls.layers.HoldAll(l.record.Layers)
		}
		if err != nil {
			ls.log.Warn("root file system has lost its layers", "rootfs", d.Name(), "err", err)
		}
		ls.m[d.Name()] = l
	}
	return nil
}
