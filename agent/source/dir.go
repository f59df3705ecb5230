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
	dev  uint64 // the file system of what was found last
}

// Run sends an Update whenever the content of the directory has changed, the
// first time as soon as it could be read, until ctx ends. A directory that is not
// there and of which nothing was ever read has no content.
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
	poke.Wake(changed) // for what happened before
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-w.Errors:
			poke.Wake(changed) // an overflow: something was missed
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
