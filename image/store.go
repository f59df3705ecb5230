package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/image/layer"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
)

// A Store holds the images below one root directory, and their root file systems. All its
// methods may be called concurrently.
type Store struct {
	o          Options
	log        *slog.Logger
	pulls      flights
	registries *registry.Client
	layers     *layer.Store
	rootfs     *rootfs.Store

	catalog atomic.Pointer[catalog] // replaced under mu
	mu      sync.Mutex              // held while a record is written; readers do not wait for it
	pinned  pinning                 // guarded by mu

	settings atomic.Pointer[Settings]

	end context.CancelFunc // of background work
}

// Open opens the store below o.Root, creating it if it is missing. It removes leftovers of a crash,
// and incomplete images: they can be pulled again.
func Open(ctx context.Context, o Options) (_ *Store, err error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			end()
		}
	}()
	s := &Store{o: o, log: o.Log, end: end}
	s.pulls.start(life)
	s.registries = registry.New(s.staging(), o.Log, o.Settings.Settings)
	s.Reconfigure(o.Settings)
	for _, d := range []struct {
		path string
		mode fs.FileMode
	}{
		{o.Root, 0o700}, // before its contents, which others may read
		{filepath.Join(o.Root, "layers"), 0o700}, {s.staging(), 0o700}, {filepath.Join(o.Root, "rw"), 0o700},
		{filepath.Join(o.Root, "empty"), 0o755}, // a layer without files
		{o.State, 0o711},                        // user namespaces reach their root through it
	} {
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			return nil, fmt.Errorf("make image store: %w", err)
		}
	}
	packs := o.Layers == Auto || o.Layers == EROFS
	if s.layers, err = layer.Open(ctx, layer.Options{Root: o.Root, Unclean: o.Unclean, Squash: o.Squash, EROFS: packs, Life: life, Log: o.Log}); err != nil {
		return nil, err
	}
	if packs {
		if why := s.layers.LacksEROFS(); why != nil {
			s.lacksEROFS(why)
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.layers.Close())
		}
	}()
	if err := s.findImages(); err != nil {
		return nil, err
	}
	if s.rootfs, err = rootfs.Open(rootfs.Options{Root: o.Root, State: o.State, Layers: s.layers, Image: s.rootImage, Life: life, Log: o.Log}); err != nil {
		return nil, err
	}
	s.layers.DropUnused()
	s.rootfs.MeasureAll()
	return s, nil
}

// Close ends pulls and background work. Mounts stay. The next Open continues pending removals.
func (s *Store) Close() error {
	late := time.AfterFunc(2*time.Second, s.end) // the next Open removes the rest
	err := s.layers.DropKept()
	late.Stop()
	s.end()
	s.pulls.wait()
	s.rootfs.Close()
	return errors.Join(err, s.layers.Close())
}

// RootFS returns the root file systems made from the images.
func (s *Store) RootFS() *rootfs.Store { return s.rootfs }

// rootImage returns the parts of an image that its root file systems mount.
func (s *Store) rootImage(ref string) (rootfs.Image, error) {
	e, err := s.find(ref)
	if err != nil {
		return rootfs.Image{}, err
	}
	return rootfs.Image{ID: e.ID, Layers: e.record.Layers, Dirs: e.record.Dirs, Artifact: e.Artifact}, nil
}

// lacksEROFS logs why new layers are directories and not file systems.
func (s *Store) lacksEROFS(why error) {
	level := slog.LevelInfo
	if s.o.Layers == EROFS {
		level = slog.LevelWarn
	}
	s.log.Log(context.Background(), level, "layers are kept as directories: EROFS cannot be mounted from a file", "err", why)
}

// staging is the directory of unfinished work.
func (s *Store) staging() string { return filepath.Join(s.o.Root, "staging") }

// findImages loads the records of images. It drops an image that has lost a layer.
func (s *Store) findImages() error {
	ids, err := s.o.Records.IDs(recordKind)
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	records := make(map[string]record)
	latest := make(map[string]string) // tag → the ID that got it last
	for _, id := range ids {
		var r record
		err := s.o.Records.Load(recordKind, id, &r)
		if err != nil && !errors.Is(err, fault.NotFound) {
			return fmt.Errorf("load image %s: %w", id, err)
		}
		if err == nil && digest.FromBytes(r.Config).Encoded() != id {
			err = fault.Invalid.Errorf("config has another digest")
		}
		if errors.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			s.log.Warn("broken image was dropped", "image", id, "err", err)
			s.dropRecord(id)
			continue
		}
		records[id] = r
		for _, tag := range r.Tags {
			if other, ok := latest[tag]; !ok || records[other].Updated.Before(r.Updated) {
				latest[tag] = id
			}
		}
	}
	entries := make(map[string]*entry)
	for id, r := range records {
		r.Tags = slices.DeleteFunc(r.Tags, func(tag string) bool { return latest[tag] != id })
		layers, err := s.layers.RetainAll(r.Layers)
		if err == nil {
			entries[id], err = s.newEntry(id, r, layers)
		}
		if err != nil {
			s.log.Warn("incomplete image was dropped", "image", id, "err", err)
			delete(entries, id)
			s.dropRecord(id)
		}
	}
	s.catalog.Store(newCatalog(entries))
	return nil
}

func (s *Store) dropRecord(id string) {
	if err := s.o.Records.Remove(recordKind, id); err != nil {
		s.log.Error("record of a dropped image was not removed", "image", id, "err", err)
	}
}

// FsInfo returns the disk usage of the store, including pending removals. It does not walk the
// disk.
func (s *Store) FsInfo() FsInfo {
	info := FsInfo{Mountpoint: s.o.Root}
	for _, used := range []func() (bytes, inodes uint64){s.layers.Used, s.rootfs.Used} {
		bytes, inodes := used()
		info.UsedBytes += bytes
		info.Inodes += inodes
	}
	return info
}

// Remove removes the image that ref names, with all its names. Layers in use by a root file
// system stay as long as it does. The space of the others is free when Remove returns, or a
// little later if there is much of it. The error is fault.NotFound if there is no such image.
func (s *Store) Remove(ctx context.Context, ref string) error {
	begin := s.layers.LastRemoval()
	// Images are removed to free space.
	if err := s.layers.Retry(); err != nil {
		s.log.WarnContext(ctx, "unused layers were not removed", "err", err)
	}
	e, err := s.find(ref)
	if err != nil {
		return err
	}
	// Also free what failed pulls have kept.
	if err := s.layers.DropKept(); err != nil {
		s.log.Warn("layer of a failed pull was not removed", "err", err)
	}
	if e, err = s.forget(e.hex()); err != nil || e == nil {
		return err
	}
	if err := s.layers.ReleaseAll(e.layers); err != nil {
		return fmt.Errorf("remove layers of image %s: %w", e.ID, err)
	}
	s.rootfs.EndRemoved()
	s.layers.WaitRemoved(ctx, begin)
	return nil
}

// forget removes the image from the store and returns it, or nil if another call did so
// meanwhile: that call releases the layers.
func (s *Store) forget(id string) (*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.catalog.Load()
	e, ok := c.byID[strings.TrimPrefix(id, "sha256:")]
	if !ok {
		return nil, nil
	}
	if err := s.o.Records.Remove(recordKind, e.hex()); err != nil {
		return nil, fmt.Errorf("remove image %s: %w", e.ID, err)
	}
	s.catalog.Store(c.without(e))
	return e, nil
}

// Check reads the files that the settings name, as a pull would, and returns their problems, by
// file.
func Check(o Settings) []string {
	return slices.Concat(registry.CheckFiles(o.Settings), blob.CheckKeys(o.KeysDir), registry.CheckHosts(o.Settings))
}
