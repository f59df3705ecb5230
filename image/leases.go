package image

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

// leases are the root file systems below one directory, by the key of their user. All
// methods may be called at the same time.
type leases struct {
	dir     string // of the leases
	state   string // of the mounts
	empty   string // a layer without files
	staging string
	layers  *layer.Store
	image   func(ref string) (RootImage, error)
	log     *slog.Logger

	private    func() error // makes state private, once
	life       context.Context
	stop       context.CancelFunc // of walks
	background sync.WaitGroup     // walks

	mu sync.Mutex
	m  map[string]*lease // guarded by mu
}

// RootImage is what is mounted of an image.
type RootImage struct {
	ID       string
	Layers   []digest.Digest // from the lowest
	Dirs     []layer.DirAttr // that are put on top of them, see layer.Store.Inherit
	Artifact bool            // it can be mounted read-only, but is no root file system
}

// rootfsOptions say where root file systems are kept, and what of. All are required.
type rootfsOptions struct {
	Root   string // on the disk that holds layers; the directories rw, staging and empty in it are there
	State  string // mounts; a directory that a reboot empties, and users of user namespaces can reach
	Layers *layer.Store
	Image  func(ref string) (RootImage, error) // finds an image; fault.NotFound if there is none
	Life   context.Context                     // of work in the background, which ends with it
	Log    *slog.Logger
}

// openLeases finds the root file systems on disk, mounted or not, and holds their layers.
// What writable layers occupy is found out in the background.
func openLeases(o rootfsOptions) (*leases, error) {
	ls := &leases{
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

// measureAll has all writable layers walked in the background, so that what they occupy is
// known soon after a start.
func (ls *leases) measureAll() { ls.background.Go(ls.refreshAll) }

// close ends the work in the background. Mounts stay.
func (ls *leases) close() {
	ls.stop()
	ls.background.Wait()
}

// findLeases reads the leases on disk. One that cannot be read, or whose layers
// are not there, is kept as a key, for its owner to remove.
func (ls *leases) findLeases() error {
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
