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
	again := time.NewTimer(d.rescan())
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
