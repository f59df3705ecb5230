package rootfs

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/image/layer"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
)

// A leaseRecord is the content of lease.json: the parts of a root file system. It is written
// before the mount and outlives it, so that the layers stay even if the image is removed or the
// machine reboots.
type leaseRecord struct {
	Image    string
	Layers   []digest.Digest // of the image, from the lowest
	Inherits bool            `json:",omitempty"` // a layer of directories is above the layers, see layer.Store.Inherit and layer.RootOf
	ReadOnly bool
	Volumes  []string `json:",omitempty"` // where they are mounted; see MakeVolumes
	Boot     string   `json:",omitempty"` // of a writable one, the boot of the machine in which it was created; "" = by an older release
}

// A lease retains the layers of one root file system, mounted or not. It is busy while a
// goroutine mounts or unmounts it; only that goroutine changes record and layers.
type lease struct {
	record leaseRecord    // guarded by Store.mu
	layers []*layer.Layer // guarded by Store.mu

	busy    bool // guarded by Store.mu
	leaving bool // its layers are being unmounted; guarded by Store.mu

	usage layer.Usage // guarded by Store.mu
	next  time.Time   // when it may be walked again; guarded by Store.mu
}

// isVoid reports whether the machine was restarted since something may have been written: writes
// are never synced (see takesVolatile), so it is unknown how much of them is on disk.
func (ls *Store) isVoid(r leaseRecord) bool { return r.Boot != "" && r.Boot != ls.boot }

func (ls *Store) path(key string) string { return filepath.Join(ls.dir, key) }

// begin locks key for work on it. If there is no lease for it, l is a new one, and fresh is set.
func (ls *Store) begin(key string) (l *lease, fresh bool, err error) {
	if key == "" || key == "." || key == ".." || key == layersDir || strings.ContainsAny(key, "/\x00") || len(key) > 200 {
		return nil, false, fault.Invalid.Errorf("root file system key %q is not a file name", key)
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l, ok := ls.m[key]
	if !ok {
		l = &lease{}
		ls.m[key] = l
	}
	if l.busy {
		return nil, false, fault.WrongState.Errorf("root file system %s is being mounted or unmounted", key)
	}
	l.busy = true
	return l, !ok, nil
}

// set sets the content of l, which the caller has begun.
func (ls *Store) set(l *lease, r leaseRecord, layers []*layer.Layer) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.record, l.layers = r, layers
}

// end unlocks key; with gone it removes the lease.
func (ls *Store) end(key string, gone bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.m[key].busy = false
	if gone {
		delete(ls.m, key)
	}
}

func (ls *Store) write(key string, r leaseRecord) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	// Not synced: a power cut that loses it ends the mount too.
	return atomicfile.WriteVolatile(filepath.Join(ls.path(key), "lease.json"), data, 0o600)
}

// Mounts returns the keys of all root file systems on disk, mounted or not.
func (ls *Store) Mounts() []string {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return slices.Sorted(maps.Keys(ls.m))
}

// usage returns what l occupied when it was last walked.
func (ls *Store) usage(l *lease) layer.Usage {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return l.usage
}

// Used returns what all writable layers together occupied when they were last walked: bytes
// allocated on disk, and inodes.
func (ls *Store) Used() (bytes, inodes uint64) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.m {
		bytes += l.usage.Bytes
		inodes += l.usage.Inodes
	}
	return bytes, inodes
}

// How often a writable layer is walked: at least minFresh apart, and for at most
// a 50th of the time.
const (
	minFresh = 2 * time.Second
	restFor  = 50
)

// Usage returns what the writable layer of key occupies: bytes allocated on disk, and inodes. It
// answers from memory, and starts a walk in the background if the figures are old.
func (ls *Store) Usage(key string) (bytes, inodes uint64, err error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l, ok := ls.m[key]
	if !ok {
		return 0, 0, fault.NotFound.Errorf("no root file system %q", key)
	}
	now := time.Now()
	if !l.record.ReadOnly && !now.Before(l.next) {
		l.next = now.Add(24 * time.Hour) // until the walk has ended
		ls.toWalk = append(ls.toWalk, walk{key, l})
		if ls.walkers < maxWalkers {
			ls.walkers++
			ls.background.Go(ls.walk)
		}
	}
	return l.usage.Bytes, l.usage.Inodes, nil
}

// maxWalkers bounds how many layers are walked at once: one call asks for those of a whole node,
// and its answer must not wait for the CPUs.
const maxWalkers = 2

// A walk is a lease whose writable layer is due for a walk.
type walk struct {
	key string
	l   *lease
}

// walk walks the layers that are due, until none is left.
func (ls *Store) walk() {
	for {
		ls.mu.Lock()
		if len(ls.toWalk) == 0 || ls.life.Err() != nil {
			ls.walkers--
			ls.mu.Unlock()
			return
		}
		next := ls.toWalk[0]
		ls.toWalk = ls.toWalk[1:]
		ls.mu.Unlock()
		ls.refresh(next.key, next.l)
	}
}

// refresh walks the writable layer of l, its volumes included.
func (ls *Store) refresh(key string, l *lease) {
	begin := time.Now()
	got, err := layer.Occupied(ls.life, filepath.Join(ls.path(key), "fs"))
	if err == nil {
		var more layer.Usage
		more, err = layer.Occupied(ls.life, ls.volumes(key))
		if errors.Is(err, fs.ErrNotExist) {
			more, err = layer.Usage{}, nil
		}
		got.Bytes += more.Bytes
		got.Inodes += more.Inodes
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && ls.life.Err() == nil {
		ls.log.Warn("writable layer was not measured", "rootfs", key, "err", err)
	}
	took := time.Since(begin)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if err == nil {
		l.usage = got
	}
	l.next = time.Now().Add(max(minFresh, restFor*took))
}

// refreshAll walks all writable layers, one after another, so that their usage is known soon
// after startup.
func (ls *Store) refreshAll() {
	ls.mu.Lock()
	all := maps.Clone(ls.m)
	ls.mu.Unlock()
	for key, l := range all {
		if ls.life.Err() != nil {
			return
		}
		ls.refresh(key, l)
	}
}
