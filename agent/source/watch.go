package source

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/periodic"
	"github.com/crisp-cri/crisp/internal/poke"
	"github.com/fsnotify/fsnotify"
)

// watch wakes Run through changed when inotify reports something. Changes that inotify misses,
// and a directory that does not exist yet, are found by the rescan.
func (d *Dir) watch(ctx context.Context, changed chan<- struct{}) {
	for ctx.Err() == nil {
		if err := d.watchOnce(ctx, changed); err != nil {
			d.Log.DebugContext(ctx, "manifest directory is not watched", "err", err)
			periodic.Pause(ctx, time.Second)
		}
	}
}

// watchOnce watches the directory, and where links lead: of the directory and of the manifests in
// it. It returns when a link has changed, so that there is something else to watch, and after
// rescan at the latest, or when ctx ends.
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
	poke.Wake(changed) // for changes before the watch
	if _, now, err := d.trails(); err != nil || !maps.Equal(now, trails) {
		return err
	}
	again := time.NewTimer(d.rescan())
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
			return nil
		case err := <-w.Errors:
			poke.Wake(changed) // an overflow: events were lost
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

// trails returns the directory that d.Path leads to, and the paths that say where links lead, as
// trail does: of d.Path and of the manifests in the directory.
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

// mostLinks is how many links a path may lead through: path_resolution(7).
const mostLinks = 40

// trail follows the absolute path as the kernel does. It returns where that leads, without links
// on the way, and all that decides it: each link, and what the last one leads to. Of a path that
// leads nowhere, the last of these is what is missing.
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
