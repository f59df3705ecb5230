package network

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle is how long the directory must have been quiet before it is read:
	// installers write a file in several steps.
	settle = 50 * time.Millisecond
	// poll is how often to look for changes without an event: if there is no watch, or a
	// symbolic link to a directory was replaced. It is also how often the plugins are asked for
	// their STATUS and the default network's rules are checked.
	poll = 10 * time.Second
)

// watched is the set of watches on the configuration directory and its parent. inotify(7)
// watches inodes: a directory that is removed and recreated needs a new watch, and only a watch
// above it notices that a missing one appears.
type watched struct {
	fs   *fsnotify.Watcher // nil if the kernel provides no inotify instance
	dirs map[string]os.FileInfo
}

func (w *watched) open(log *slog.Logger) {
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("CNI configuration is only polled", "err", err)
		return
	}
	w.fs, w.dirs = fs, make(map[string]os.FileInfo)
}

func (w *watched) close() error {
	if w.fs == nil {
		return nil
	}
	return w.fs.Close()
}

// arm watches dir and the nearest directory above it that exists.
func (w *watched) arm(dir string) {
	if w.fs == nil {
		return
	}
	want := map[string]bool{dir: true}
	above := filepath.Dir(dir)
	for above != filepath.Dir(above) {
		if _, err := os.Stat(above); err == nil {
			break
		}
		above = filepath.Dir(above)
	}
	want[above] = true
	for path := range w.dirs {
		if !want[path] {
			w.fs.Remove(path)
			delete(w.dirs, path)
		}
	}
	for path := range want {
		now, err := os.Stat(path)
		if old := w.dirs[path]; err == nil && old != nil && os.SameFile(old, now) {
			continue
		}
		w.fs.Remove(path) // of the former inode; an error means that it is gone
		delete(w.dirs, path)
		if err == nil && w.fs.Add(path) == nil {
			w.dirs[path] = now
		}
	}
}

// watch reads the configuration again after every change.
func (n *Network) watch(ctx context.Context) {
	defer close(n.ended)
	var events chan fsnotify.Event
	var errs chan error
	if n.watched.fs != nil {
		events, errs = n.watched.fs.Events, n.watched.fs.Errors
	}
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	quiet := time.NewTimer(settle)
	quiet.Stop()
	n.askPlugins(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			if strings.HasPrefix(e.Name, n.o.ConfDir) || strings.HasPrefix(n.o.ConfDir, e.Name) {
				quiet.Reset(settle)
			}
			continue
		case err := <-errs:
			// An overflow lost events: read once, as after any event.
			n.log.Warn("watch of the CNI configuration was interrupted", "err", err)
			quiet.Reset(settle)
			continue
		case <-quiet.C:
		case <-ticker.C:
			n.heal(ctx)
		}
		n.load()
		n.askPlugins(ctx)
	}
}

// heal restores the default network's rules if they are gone. Who flushes the host's ruleset
// (`systemctl restart nftables` does) means other rules.
func (n *Network) heal(ctx context.Context) {
	c := n.current.Load()
	if c.ours == nil {
		return
	}
	healed, err := c.ours.Heal(ctx)
	switch {
	case err != nil:
		n.log.WarnContext(ctx, "missing rules of the default network not restored", "err", err)
	case healed:
		n.log.WarnContext(ctx, "missing rules of the default network restored", "network", c.ours.Name)
	}
}

// load reads the configuration and publishes it if it has changed.
func (n *Network) load() *conf {
	n.loading.Lock()
	defer n.loading.Unlock()
	// Watch first, then read, so that no change in between is missed.
	n.watched.arm(n.o.ConfDir)
	old, c := n.current.Load(), n.read()
	if old.same(c) || n.beingWritten(old, c) {
		return old
	}
	for _, b := range c.bad {
		n.log.Warn("CNI configuration cannot be used", "path", b.path, "err", b.err)
	}
	if c.list != nil {
		n.log.Info("network chosen", "network", c.list.Name, "path", c.file)
		if c.ours == nil { // the default network's plugin needs no STATUS; see Status
			c.plugins = newHealth(c.list)
		}
	} else {
		n.log.Warn("network is not ready", "err", c.err)
	}
	n.current.Store(c)
	return c
}

// writeGrace is how long a file that was good stays in use while it cannot be parsed.
const writeGrace = 10 * time.Second

// beingWritten reports whether the file in use has only just become unreadable: installers write
// in place, and a pod that got the network of the next file meanwhile would keep it for good.
// The caller holds n.loading.
func (n *Network) beingWritten(old, c *conf) bool {
	bad := slices.ContainsFunc(c.bad, func(b badFile) bool { return b.path == old.file })
	if old.list == nil || !bad {
		n.badSince = time.Time{}
		return false
	}
	if n.badSince.IsZero() {
		n.badSince = time.Now()
	}
	return time.Since(n.badSince) < writeGrace
}

// usable returns the configuration, or the reason for not having one. Without one it first reads
// the directory again, to find a file even without events; likewise if the default network is in
// use but another one is awaited.
func (n *Network) usable() (*conf, error) {
	c := n.current.Load()
	if c.list == nil || c.ours != nil && n.awaited() != "" {
		c = n.load()
	}
	return c, c.err
}
