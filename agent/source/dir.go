package source

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/internal/filelease"
	"github.com/crisp-cri/crisp/internal/periodic"
	"github.com/crisp-cri/crisp/internal/poke"
	"github.com/crisp-cri/crisp/internal/regular"
	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

const (
	// rescan is the interval at which the directory is read without inotify events. inotify does
	// not see changes that other machines make on network file systems, nor mounts.
	rescan = 20 * time.Second
	// settle is how long the directory must stay unchanged before it is read. An editor may save a
	// file by moving the old one away before it writes the new one, which must not end the pod.
	settle = 200 * time.Millisecond
	// maxSettle is the longest wait for a directory that keeps changing.
	maxSettle = 2 * time.Second
	maxSize   = manifest.MaxSize
)

// A Dir is a directory of manifest files: *.yaml, *.yml and *.json. Hidden files and
// subdirectories are ignored.
type Dir struct {
	Path   string
	Decode Decode
	Copies Copies // "" means no copies
	Log    *slog.Logger

	every time.Duration // between rescans; 0 means rescan
	last  map[string]cached
	dev   uint64 // the device of the directory at the last scan

	unfinished bool // a program had a file open for writing at the last scan
}

// Run sends an Update after the first read of the directory and whenever its content has changed,
// until ctx ends. A directory that does not exist at the start counts as empty, unless there are
// copies of its manifests.
func (d *Dir) Run(ctx context.Context, out chan<- Update) {
	changed := make(chan struct{}, 1)
	go d.watch(ctx, changed)
	first, complaint := true, ""
	for ctx.Err() == nil {
		files, differ, err := d.scan()
		if first && errors.Is(err, fs.ErrNotExist) && d.Copies.none() {
			d.Log.WarnContext(ctx, "manifest directory does not exist", "dir", d.Path)
			err = nil
		}
		again := cmp.Or(d.every, rescan)
		if d.unfinished {
			again = settle
		}
		switch {
		case err != nil:
			if err.Error() != complaint {
				d.Log.WarnContext(ctx, "manifest directory could not be read", "err", err)
			}
			complaint = err.Error()
		case first || differ:
			complaint = ""
			select {
			case out <- Update{manifest.SourceFile, files}:
				first = false
			case <-ctx.Done():
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		case <-changed:
			quiet(ctx, changed)
		}
	}
}

func quiet(ctx context.Context, changed <-chan struct{}) {
	deadline := time.After(maxSettle)
	for {
		select {
		case <-changed:
		case <-time.After(settle):
			return
		case <-deadline:
			return
		case <-ctx.Done():
			return
		}
	}
}

// isManifest reports whether a file with this name is a manifest. It excludes files that editors
// and package managers leave behind: .web.yaml.swp, web.yaml~, #web.yaml#, web.yaml.dpkg-old.
func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

type cached struct {
	sum  [sha256.Size]byte
	file File
}

// unmounted returns an error if all manifests are gone and the directory is on another file system
// than before. Then a file system was unmounted, and no manifest was removed.
func (d *Dir) unmounted(entries []fs.DirEntry) error {
	var s unix.Stat_t
	if err := unix.Stat(d.Path, &s); err != nil {
		return fmt.Errorf("%s: %w", d.Path, err)
	}
	empty := !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return isManifest(e.Name()) })
	if empty && len(d.last) > 0 && s.Dev != d.dev {
		return fmt.Errorf("%s: its manifests are on a file system that is not mounted any more", d.Path)
	}
	d.dev = s.Dev
	return nil
}

// scan reads the directory and reports whether it differs from the last scan. It decodes only files
// whose content has changed. A known file that a program is writing stays as it was.
func (d *Dir) scan() (files []File, differ bool, err error) {
	entries, err := os.ReadDir(d.Path)
	if err != nil {
		return nil, false, err
	}
	if err := d.unmounted(entries); err != nil {
		return nil, false, err
	}
	now, unfinished := map[string]cached{}, false
	for _, e := range entries {
		if !isManifest(e.Name()) || e.IsDir() {
			continue
		}
		path := filepath.Join(d.Path, e.Name())
		data, err := read(path)
		c, known := d.last[path]
		writing := errors.Is(err, errWriting)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed after ReadDir, or a dangling link
		}
		sum := sha256.Sum256(data)
		if err != nil {
			sum = sha256.Sum256([]byte(err.Error()))
		}
		if !known || c.sum != sum && !writing {
			differ = true
			var last *File
			if known {
				last = &c.file
			}
			c = cached{sum: sum, file: d.Copies.load(path, data, err, last, d.Decode)}
		}
		unfinished = unfinished || writing
		now[path] = c
		files = append(files, c.file)
	}
	if differ = differ || len(now) != len(d.last); differ {
		paths := map[string]bool{}
		for path := range now {
			paths[path] = true
		}
		if err := d.Copies.keepOnly(paths); err != nil {
			d.Log.Warn("copies of manifests not removed", "err", err)
		}
	}
	d.last, d.unfinished = now, unfinished
	return files, differ, nil
}

// writing is the time since its last change for which a file that is open for writing counts as
// unfinished. Some programs keep files open forever.
const writing = 10 * time.Second

var errWriting = errors.New("it is being written")

// read returns the content of a manifest. It returns errWriting while a program is writing to the
// file, since the content may be incomplete.
func read(path string) ([]byte, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > maxSize {
		return nil, fmt.Errorf("%s: %d bytes, more than a manifest may have (%d)", path, info.Size(), maxSize)
	}
	if has, _ := filelease.HasWriter(f); has && time.Since(info.ModTime()).Abs() < writing {
		return nil, fmt.Errorf("%s: %w", path, errWriting)
	}
	return regular.ReadAll(f, maxSize)
}

// watch wakes Run through changed when inotify reports something. The rescan finds changes that
// inotify misses, and a directory that does not exist yet.
func (d *Dir) watch(ctx context.Context, changed chan<- struct{}) {
	for ctx.Err() == nil {
		if err := d.watchOnce(ctx, changed); err != nil {
			d.Log.DebugContext(ctx, "manifest directory is not watched", "err", err)
			periodic.Pause(ctx, time.Second)
		}
	}
}

// watchOnce watches the directory, and the targets of links: of the directory itself and of the
// manifests in it. It returns when a link has changed and other targets need watching, after rescan
// at the latest, or when ctx ends.
func (d *Dir) watchOnce(ctx context.Context, changed chan<- struct{}) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()
	at, trails, err := d.trails()
	if err != nil {
		return err
	}
	if err := w.Add(at); err != nil {
		return err
	}
	for path := range trails {
		if err := w.Add(filepath.Dir(path)); err != nil {
			d.Log.DebugContext(ctx, "target of a link is not watched", "path", path, "err", err)
		}
	}
	poke.Wake(changed) // there may have been changes before the watch
	if _, now, err := d.trails(); err != nil || !maps.Equal(now, trails) {
		return err
	}
	again := time.NewTimer(cmp.Or(d.every, rescan))
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
			return nil
		case err := <-w.Errors:
			poke.Wake(changed) // an overflow lost events
			d.Log.DebugContext(ctx, "manifest directory watch reported an error", "err", err)
		case e, ok := <-w.Events:
			if !ok {
				return errors.New("watch ended")
			}
			is := filepath.Dir(e.Name) == at && isManifest(filepath.Base(e.Name))
			gone := e.Name == at && e.Has(fsnotify.Remove|fsnotify.Rename)
			if e.Op == fsnotify.Chmod || !is && !gone && !trails[e.Name] {
				continue
			}
			poke.Wake(changed)
			if gone || e.Op != fsnotify.Write && (trails[e.Name] || isLink(e.Name)) {
				return nil
			}
		}
	}
}

func isLink(path string) bool {
	_, err := os.Readlink(path)
	return err == nil
}

// trails returns the directory to which d.Path resolves, and all paths that decide where d.Path and
// the manifests in the directory resolve to (see trail).
func (d *Dir) trails() (at string, trails map[string]bool, err error) {
	links, at := trail(d.Path)
	entries, err := os.ReadDir(d.Path)
	if err != nil {
		return "", nil, err
	}
	for _, e := range entries {
		if isManifest(e.Name()) && e.Type() == os.ModeSymlink {
			of, _ := trail(filepath.Join(at, e.Name()))
			links = append(links, of...)
		}
	}
	trails = map[string]bool{}
	for _, path := range links {
		trails[path] = true
	}
	return at, trails, nil
}

// mostLinks is the number of links that the kernel follows in a path, see path_resolution(7).
const mostLinks = 40

// trail resolves the absolute path as the kernel does. It returns the result, which has no links,
// and the paths that decide it: each link on the way, and the target of the last one. If the target
// does not exist, the last of them is the missing file.
func trail(path string) (decides []string, at string) {
	at = "/"
	links := 0
	for rest := strings.Split(path, "/"); len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		next := filepath.Join(at, name) // at has no links, so ".." is its parent
		target, err := os.Readlink(next)
		if err != nil {
			at = next
			if _, err := os.Lstat(next); err != nil {
				return append(decides, next), at
			}
			continue
		}
		decides = append(decides, next)
		if links++; links > mostLinks {
			return decides, at
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = slices.Concat(strings.Split(target, "/"), rest)
	}
	if links > 0 {
		decides = append(decides, at)
	}
	return decides, at
}
