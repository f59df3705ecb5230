package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/internal/periodic"
	"github.com/crisp-cri/crisp/internal/poke"
)

const (
	// rescan is how often the directory is read without an event of inotify, which
	// sees neither changes on network file systems nor those of a link's target.
	rescan = 20 * time.Second
	// settle is how long the directory must be quiet after a change. An editor may
	// save by moving the old file away before it writes the new one, which must not
	// end the pod.
	settle = 200 * time.Millisecond
	// maxSettle bounds settling in a directory that is never quiet.
	maxSettle = 2 * time.Second
	// maxSize is more bytes than any manifest has.
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
	dev  uint64 // file system of the last manifests
}

// Run sends an Update as soon as the directory could be read and whenever its content has
// changed, until ctx ends. A directory that does not exist and never had a manifest counts
// as empty.
func (d *Dir) Run(ctx context.Context, out chan<- Update) {
	changed := make(chan struct{}, 1)
	go d.watch(ctx, changed)
	first, complaint := true, ""
	for ctx.Err() == nil {
		files, differ, err := d.scan()
		if first && errors.Is(err, fs.ErrNotExist) && d.Copies.none() {
			d.Log.WarnContext(ctx, "manifest directory is not there", "dir", d.Path)
			err = nil
		}
		again := rescan
		if d.unfinished() {
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

// quiet returns when there was no change for the time settle, or after maxSettle.
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

// watch wakes Run through changed when inotify reports something. The rescan finds what
// inotify misses, and a directory that does not exist yet.
func (d *Dir) watch(ctx context.Context, changed chan<- struct{}) {
	for ctx.Err() == nil {
		if err := d.watchOnce(ctx, changed); err != nil {
			d.Log.DebugContext(ctx, "manifest directory is not watched", "err", err)
		}
		periodic.Pause(ctx, time.Second)
	}
}

// watchOnce watches until the directory goes away.
func (d *Dir) watchOnce(ctx context.Context, changed chan<- struct{}) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Add(d.Path); err != nil {
		return err
	}
	poke.Wake(changed) // for changes before the watch
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-w.Errors:
			poke.Wake(changed) // an overflow: events were lost
			d.Log.DebugContext(ctx, "manifest directory watch complained", "err", err)
		case e, ok := <-w.Events:
			if !ok {
				return errors.New("watch ended")
			}
			if e.Name == d.Path && e.Has(fsnotify.Remove|fsnotify.Rename) {
				poke.Wake(changed)
				return fmt.Errorf("%s went away", d.Path)
			}
			if isManifest(filepath.Base(e.Name)) && e.Op != fsnotify.Chmod {
				poke.Wake(changed)
			}
		}
	}
}

// isManifest reports whether a file of this name is a manifest. What editors and package
// managers leave is not: .web.yaml.swp, web.yaml~, #web.yaml#, web.yaml.dpkg-old.
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
