package rootfs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/image/layer"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/tree"
	"github.com/crisp-cri/crisp/internal/userns"
	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
)

// maxVolumes bounds the number of an image's volumes: each is a mount. Real images have a handful.
const maxVolumes = 128

// A Volume is a directory that belongs to one container, to be mounted in its root file system.
type Volume struct {
	Path   string // in the root file system: absolute, without links
	Source string // on the host
}

// VolumesWanted are the arguments of MakeVolumes.
type VolumesWanted struct {
	// Paths are the image's: "A set of directories describing where the process is
	// likely to write data specific to a container instance" (image-spec, config.md).
	Paths []string
	// Mounted are the paths of other mounts. There is no volume at such a path, but there may be
	// one below it.
	Mounted []string
	// Reserved are directories at and below which there are no volumes.
	Reserved []string
	// IDs are the mappings of the root file system's user namespace; nil = the host's.
	IDs *userns.Map
}

// MakeVolumes creates a directory for each volume of the mounted root file system of key, with a
// copy of the image's files there. Nothing may run in it yet. Writes to the directories count as
// written to the root file system, are part of a Diff, and are removed with it.
//
// Symlinks in a path are resolved as in a container, and never lead out of the root file system.
// A volume inside another one is part of that. The error is fault.Invalid for a path that is not
// a directory.
func (ls *Store) MakeVolumes(ctx context.Context, key string, want VolumesWanted) ([]Volume, error) {
	l, fresh, err := ls.begin(key)
	if err != nil {
		return nil, err
	}
	defer func() { ls.end(key, fresh) }()
	if fresh || l.record.ReadOnly || len(l.record.Volumes) > 0 {
		return nil, fault.NotFound.Errorf("no writable root file system %q without volumes", key)
	}
	root := ls.mountPoint(key)
	paths, err := want.places(root)
	if err != nil || len(paths) == 0 {
		return nil, err
	}
	r := l.record
	r.Volumes = paths
	if err := ls.write(key, r); err != nil {
		return nil, err
	}
	ls.set(l, r, l.layers)
	if err := os.Mkdir(ls.volumes(key), 0o700); err != nil {
		return nil, err
	}
	var list []Volume
	for i, at := range paths {
		v := Volume{Path: at, Source: ls.volume(key, i)}
		if err := makeVolume(ctx, filepath.Join(root, at), v.Source, want.IDs); err != nil {
			return nil, fmt.Errorf("volume %s: %w", at, err)
		}
		list = append(list, v)
	}
	ls.refresh(key, l)
	return list, nil
}

// volumes returns the directory of the volumes of key.
func (ls *Store) volumes(key string) string { return filepath.Join(ls.path(key), "volumes") }

// volume returns the directory of the i-th of leaseRecord.Volumes.
func (ls *Store) volume(key string, i int) string {
	return filepath.Join(ls.volumes(key), strconv.Itoa(i))
}

// places returns the paths of the volumes to create, sorted. None is inside another, so that the
// image's files are copied at most once.
func (w VolumesWanted) places(root string) ([]string, error) {
	if len(w.Paths) > maxVolumes {
		return nil, fault.Invalid.Errorf("the image has %d volumes, more than %d", len(w.Paths), maxVolumes)
	}
	taken := make(map[string]bool)
	for _, name := range w.Mounted {
		// Mounting it reports an error there again.
		if at, err := resolve(root, name); err == nil {
			taken[at] = true
		}
	}
	var all []string
	for _, name := range w.Paths {
		at, err := resolve(root, name)
		if err != nil {
			return nil, fault.Invalid.Errorf("volume %.200q of the image: %w", name, err)
		}
		if at == "/" {
			return nil, fault.Invalid.Errorf("volume %.200q of the image is its root directory", name)
		}
		if !taken[at] && !slices.ContainsFunc(w.Reserved, func(dir string) bool { return within(at, dir) }) {
			all = append(all, at)
		}
	}
	slices.Sort(all)
	var places []string
	for _, at := range all {
		if !slices.ContainsFunc(places, func(dir string) bool { return within(at, dir) }) {
			places = append(places, at)
		}
	}
	return places, nil
}

// within reports whether the clean path name is dir or below it.
func within(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

// resolve returns where name leads in the root file system at root, absolute and without
// symlinks. It need not exist. No other process changes the root file system, so resolving the path
// first is not a race.
func resolve(root, name string) (string, error) {
	if strings.Contains(name, "\x00") {
		return "", unix.EINVAL
	}
	clean := path.Clean("/" + name)
	if len(clean) > layer.MaxPath {
		return "", unix.ENAMETOOLONG
	}
	full, err := securejoin.SecureJoin(root, clean)
	if err != nil {
		return "", err
	}
	at := path.Clean("/" + strings.TrimPrefix(full, root))
	if len(at) > layer.MaxPath {
		return "", unix.ENAMETOOLONG
	}
	return at, nil
}

// makeVolume creates the directory to, as a copy of from if that exists, else empty and owned by
// the container's root.
func makeVolume(ctx context.Context, from, to string, ids *userns.Map) error {
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	switch st, err := os.Lstat(from); {
	case err == nil && !st.IsDir():
		return fault.Invalid.Errorf("the image's file there is not a directory")
	case err == nil:
		return copyTree(ctx, from, to)
	case !errors.Is(err, fs.ErrNotExist):
		return fault.Invalid.Errorf("%w", err)
	}
	attr := layer.RootAttr{Mode: 0o755}
	if ids != nil {
		attr = (&IDMap{IDs: *ids}).shift(attr)
	}
	return attr.Give(to)
}

// copyTree copies the directory from to the directory to, which is empty: owners,
// modes, times, hard links and the attributes that an image may have.
func copyTree(ctx context.Context, from, to string) error {
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		d := &differ{ctx: ctx, tar: tar.NewWriter(w), links: make(map[uint64]string)}
		err := d.tree(from, "", false)
		if err == nil {
			err = d.tar.Close()
		}
		w.CloseWithError(err)
	}()
	err := layer.Extract(ctx, r, to)
	r.CloseWithError(err)
	<-done
	return err
}

// tree adds the directory dir, and all below it, as name. The inode numbers tell which files are
// one unless alone is set.
func (d *differ) tree(dir, name string, alone bool) error {
	return tree.Walk(d.ctx, dir, tree.Options{Sorted: true}, func(f *tree.File) error {
		below, err := nameOf(f)
		if err != nil {
			return err
		}
		if alone {
			f.Stat.Nlink = 1
		}
		return d.add(filePath(f, dir), path.Join(name, below), &f.Stat)
	})
}

// volume adds the content of the volume at the path at, whose directory is dir, and records as
// removed those files of the image there that the volume lacks.
func (d *differ) volume(dir, at string) error {
	name := strings.TrimPrefix(at, "/")
	if err := d.tree(dir, name, false); err != nil {
		return err
	}
	top := filepath.Join(d.merged, name)
	err := tree.Walk(d.ctx, top, tree.Options{}, func(f *tree.File) error {
		below, err := nameOf(f)
		if err != nil {
			return err
		}
		// All parents are directories in both: no symlink is followed.
		var st unix.Stat_t
		err = unix.Lstat(filepath.Join(dir, below), &st)
		switch {
		case err == unix.ENOENT:
			d.deleted = append(d.deleted, path.Join(at, below))
		case err != nil:
			return &fs.PathError{Op: "lstat", Path: filepath.Join(dir, below), Err: err}
		case !f.IsDir() || st.Mode&unix.S_IFMT == unix.S_IFDIR:
			return nil
		}
		if f.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the image has nothing there
	}
	return err
}
