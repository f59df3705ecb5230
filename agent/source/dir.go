package source

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
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
	// maxSize is the maximum size of a manifest in bytes.
	maxSize = 4 << 20
)

// A Dir is a directory of manifest files: *.yaml, *.yml and *.json. Hidden files and
// subdirectories are ignored.
type Dir struct {
	Path   string
	Decode Decode
	Copies Copies // "" means no copies
	Log    *slog.Logger

	never bool // no rescan, for tests of inotify
	last  map[string]cached
	dev   uint64 // the device of the directory at the last scan
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
		again := d.rescan()
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

// rescan returns the interval at which to read the directory without events.
func (d *Dir) rescan() time.Duration {
	if d.never {
		return math.MaxInt64
	}
	return rescan
}

// quiet returns after settle without a change, or after maxSettle.
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
