package source

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/fsnotify/fsnotify"
)

const (
	// rescan is how often the directory is read even though inotify tells of no
	// change: it is silent on network file systems and about the targets of
	// symbolic links.
	rescan = 20 * time.Second
	// settle is how long the directory must be quiet after a change. An editor
	// saves by moving the old file away and writing a new one, and for that
	// moment the pod must not be ended.
	settle = 200 * time.Millisecond
	// maxSettle bounds settling in a directory that is never quiet.
	maxSettle = 2 * time.Second
	// maxSize is more than any manifest and less than what hurts.
	maxSize = 4 << 20
)

// A Dir is a directory of manifest files: *.yaml, *.yml and *.json, without
// hidden files and without subdirectories.
type Dir struct {
	Path   string
	Decode Decode
	Copies Copies // "" keeps none
	Log    *slog.Logger

	last map[string]cached
}

type cached struct {
	sum  [sha256.Size]byte
	file File
}

// Run sends an Update whenever the content of the directory has changed, the
// first time as soon as it could be read, until ctx ends.
func (d *Dir) Run(ctx context.Context, out chan<- Update) {
	changed := make(chan struct{}, 1)
	go d.watch(ctx, changed)
	first, complaint := true, ""
	for ctx.Err() == nil {
		files, differ, err := d.scan()
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
		case <-time.After(rescan):
		case <-changed:
			quiet(ctx, changed)
		}
	}
}

// quiet returns when changes have ceased for the time settle.
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

// watch pokes changed when inotify tells of something. What it misses, and a
// directory that is not there yet, the rescan finds.
func (d *Dir) watch(ctx context.Context, changed chan<- struct{}) {
	poke := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	for ctx.Err() == nil {
		if err := d.watchOnce(ctx, poke); err != nil {
			d.Log.DebugContext(ctx, "manifest directory is not watched", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// watchOnce watches until the directory goes away.
func (d *Dir) watchOnce(ctx context.Context, poke func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Add(d.Path); err != nil {
		return err
	}
	poke() // for what happened before
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-w.Errors:
			poke() // an overflow: something was missed
			d.Log.DebugContext(ctx, "manifest directory watch complained", "err", err)
		case e, ok := <-w.Events:
			if !ok {
				return errors.New("watch ended")
			}
			if e.Name == d.Path && e.Has(fsnotify.Remove|fsnotify.Rename) {
				poke()
				return fmt.Errorf("%s went away", d.Path)
			}
			if isManifest(filepath.Base(e.Name)) && e.Op != fsnotify.Chmod {
				poke()
			}
		}
	}
}

// isManifest tells a manifest from what editors and package managers leave
// beside it: .web.yaml.swp, web.yaml~, #web.yaml#, web.yaml.bak, web.yaml.dpkg-old.
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

// scan reads the directory and says whether it differs from the last scan. Only
// a file whose content has changed is decoded.
func (d *Dir) scan() (files []File, differ bool, err error) {
	entries, err := os.ReadDir(d.Path)
	if err != nil {
		return nil, false, err
	}
	now := map[string]cached{}
	for _, e := range entries {
		if !isManifest(e.Name()) || e.IsDir() {
			continue
		}
		path := filepath.Join(d.Path, e.Name())
		data, err := read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since ReadDir, or a dangling link
		}
		sum := sha256.Sum256(data)
		if err != nil {
			sum = sha256.Sum256([]byte(err.Error()))
		}
		c, known := d.last[path]
		if !known || c.sum != sum {
			differ = true
			var last *File
			if known {
				last = &c.file
			}
			c = cached{sum, d.Copies.load(path, data, err, last, d.Decode)}
		}
		now[path] = c
		files = append(files, c.file)
	}
	if differ = differ || len(now) != len(d.last); differ {
		paths := map[string]bool{}
		for path := range now {
			paths[path] = true
		}
		if err := d.Copies.keepOnly(paths); err != nil {
			d.Log.Warn("copies of manifests stay", "err", err)
		}
	}
	d.last = now
	return files, differ, nil
}

func read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	if info.Size() > maxSize {
		return nil, fmt.Errorf("%s: %d bytes, more than a manifest may have (%d)", path, info.Size(), maxSize)
	}
	return os.ReadFile(path)
}
