// Package layer stores the unpacked layers of images.
//
// Each layer is unpacked once, while it downloads, into a directory named by its diff ID, in
// overlayfs's own format. Layers do not depend on each other, so those of one image unpack in
// parallel, and a layer shared by two concurrent pulls is unpacked by one of them. Compressed
// blobs are not kept. A caller who asks for a stored layer must prove that he could have fetched
// it, see entitle.
//
// On disk:
//
//	<root>/layers/<diff ID>/fs/         the files, whiteouts as 0:0 devices; or
//	<root>/layers/<diff ID>/fs.erofs    the same as one EROFS file system, see packer
//	<root>/layers/<diff ID>/layer.json  their description, written once; beside an EROFS file
//	                                    system erofs.json, so that a crispd that knows none drops
//	                                    the layer
//	<root>/staging/                     unfinished work; emptied by Open
//
// The layers of an image are unpacked in staging, brought to disk by one syncfs(2), and renamed
// into layers. A layer lives as long as it is retained by an image, a root file system, or a
// pull under way.
//
// Every path in a layer is untrusted. See unpacker.
package layer

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/tree"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// A record describes an unpacked layer. It is written before the layer's directory is renamed
// into place.
type record struct {
	DiffID digest.Digest
	Sum    sum
	Shape  shape
	From   source `json:",omitzero"`  // what it was unpacked from
	EROFS  bool   `json:",omitempty"` // a file instead of a directory
	size   int64  // of the record itself, in bytes
}

// A Layer is one layer, unpacked or being unpacked.
//
//	acquire ──▶ unpacking ──▶ unpacked ──▶ committed ──▶ going
//	                │  cancel     │                        ▲
//	                ▼             └────────────────────────┘
//	              going
//
// It is going once the last reference is released; then its directory is deleted, and a caller
// who wants the layer waits for that and starts over. If it cannot be deleted it is committed
// again, and stuck.
type Layer struct {
	DiffID digest.Digest // its name in the store, see blob.Blob.Identity
	ready  chan struct{} // closed once record or err is set
	record record
	err    error

	growth    growth    // until it is ready
	losses    int64     // of the disk before the first byte was written
	tempDir   string    // its directory in staging, until it is committed
	commit    sync.Once // renames tempDir into place
	failed    error     // of commit
	committed atomic.Bool

	key       fillKey
	sources   []source           // guarded by Store.mu
	refs      int                // guarded by Store.mu
	cancel    context.CancelFunc // ends the unpacking
	gone      chan struct{}      // guarded by Store.mu; not nil while going, closed at the end
	stuck     bool               // guarded by Store.mu; it should have been deleted
	overtaken bool               // guarded by Store.mu; another registry gave the same layer sooner
}

// A fillKey is a layer as one registry has it. Callers who want it from different registries do not
// wait for each other: a registry can be slow, or serve something else for hours.
type fillKey struct {
	id       digest.Digest
	registry string
}

// errOvertaken means that another registry has given the layer meanwhile.
var errOvertaken = errors.New("layer is there")

// A Store holds the layers on disk and those being unpacked, by diff ID. All its methods may be
// called concurrently.
type Store struct {
	dir      string // where committed layers are
	staging  string
	unclean  bool
	squash   bool         // see Options
	erofs    bool         // new layers become EROFS file systems
	probe    func() error // checks, once, whether those can be mounted
	disk     *disk
	removals *removals
	end      context.CancelFunc // of work in the background
	log      *slog.Logger

	mu        sync.Mutex
	m         map[digest.Digest]*Layer // those that are ready; guarded by mu
	unpacking map[fillKey]*Layer       // guarded by mu
	running   sync.WaitGroup           // unpacking

	keeping sync.Mutex
	kept    map[*Layer]*time.Timer // guarded by keeping; see Keep
}

// path is the directory of a committed layer.
func (ls *Store) path(id digest.Digest) string { return filepath.Join(ls.dir, id.Encoded()) }

// A fillFunc makes the files of a layer in its own directory, which is empty, and counts in g
// the bytes that it writes. It fills in the record's description of the files.
type fillFunc func(ctx context.Context, dir string, g *growth) (record, error)

// Has reports whether a layer is in the store, and whole.
func (ls *Store) Has(id digest.Digest) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.m[id]
	return l != nil && l.gone == nil
}

// acquire returns the layer id, retained; mine reports whether it was unpacked for this
// call, from the blob that src names. If the layer is not there, fill is called, unless another
// caller is unpacking the same layer from the same registry: then acquire waits for that. fill's
// context ends when no caller waits any more, or when the layer has come from another registry;
// acquire does not return before its own fill has, even if ctx is done and others still wait.
func (ls *Store) acquire(ctx context.Context, id digest.Digest, src source, fill fillFunc) (l *Layer, mine bool, err error) {
	for {
		l, mine, err := ls.retain(ctx, id, src, fill)
		if err != nil {
			return nil, false, err
		}
		select {
		case <-l.ready:
		case <-ctx.Done():
			if err := ls.release(l); err != nil {
				return nil, false, err
			}
			if mine {
				<-l.ready // fill uses what belongs to the caller
			}
			return nil, false, ctx.Err()
		}
		if l.err == nil {
			return l, mine, nil
		}
		if err := ls.release(l); err != nil {
			return nil, false, err
		}
		switch {
		case l.err == errOvertaken:
			if ctx.Err() != nil {
				return nil, false, ctx.Err()
			}
		case mine, ctx.Err() != nil: // another caller's failure need not be ours: he may lack credentials
			return nil, false, l.err
		}
	}
}

// retain adds a reference to the layer id, and begins to unpack it if it is missing; mine
// reports whether it did. If the layer is going, retain waits until it is gone.
func (ls *Store) retain(ctx context.Context, id digest.Digest, src source, fill fillFunc) (l *Layer, mine bool, err error) {
	key := fillKey{id, src.registry()}
	for {
		ls.mu.Lock()
		if l = ls.m[id]; l == nil {
			l = ls.unpacking[key]
		}
		if l == nil || l.gone == nil {
			break
		}
		gone := l.gone
		ls.mu.Unlock()
		select {
		case <-gone:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
	defer ls.mu.Unlock()
	if l == nil {
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		l = &Layer{DiffID: id, key: key, ready: make(chan struct{}), cancel: cancel}
		ls.unpacking[key] = l
		mine = true
		ls.running.Go(func() {
			defer cancel()
			ls.unpack(own, l, src, fill)
		})
	}
	l.refs++
	l.stuck = false
	return l, mine, nil
}

// unpack makes l ready.
func (ls *Store) unpack(ctx context.Context, l *Layer, src source, fill fillFunc) {
	l.err = ls.unpackToTemp(ctx, l, src, fill)
	ls.learn(l, src)
	unwanted, late := ls.arrive(l)
	if late {
		if err := tree.Remove(ls.removals.life, l.tempDir); err != nil {
			ls.log.Error("layer that was unpacked twice was not removed", "layer", l.DiffID, "err", err)
		}
		l.err = errOvertaken
		ls.arrive(l)
	}
	if unwanted {
		if err := ls.drop(l); err != nil {
			ls.log.Error("unneeded unpacked layer was not removed", "layer", l.DiffID, "err", err)
		}
	}
}

// arrive makes l ready, which has been unpacked or has failed, and ends the unpacking of the same
// layer from other registries. unwanted reports that every caller has left: then the files are for
// ls.drop. late reports that another registry was first: then l is not made ready.
func (ls *Store) arrive(l *Layer) (unwanted, late bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for l.err == nil && l.gone == nil && ls.m[l.DiffID] != nil {
		first := ls.m[l.DiffID]
		gone := first.gone
		if gone == nil {
			for _, src := range l.sources {
				first.learn(src)
			}
			return false, true
		}
		ls.mu.Unlock()
		<-gone
		ls.mu.Lock()
	}
	if l.err != nil && l.overtaken {
		l.err = errOvertaken
	}
	switch {
	case l.err != nil:
		ls.forget(l)
		if l.gone != nil {
			close(l.gone)
		}
	case l.gone == nil:
		ls.forget(l)
		ls.m[l.DiffID] = l
		for key, other := range ls.unpacking {
			if key.id == l.DiffID {
				other.overtaken = true
				other.cancel()
			}
		}
	default:
		unwanted = true
	}
	close(l.ready) // under the lock: release checks both
	return unwanted, false
}

// forget removes l from the store's maps. The caller holds mu.
func (ls *Store) forget(l *Layer) {
	if ls.m[l.DiffID] == l {
		delete(ls.m, l.DiffID)
	}
	if ls.unpacking[l.key] == l {
		delete(ls.unpacking, l.key)
	}
}

// unpackToTemp unpacks l into its own directory in staging.
func (ls *Store) unpackToTemp(ctx context.Context, l *Layer, src source, fill fillFunc) (err error) {
	l.losses = ls.disk.losses.Load()
	dir, err := os.MkdirTemp(ls.staging, "layer-*")
	if err != nil {
		return fmt.Errorf("make staging directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tree.Remove(ls.removals.life, dir))
		}
	}()
	err = fault.Protect(func() (err error) {
		l.record, err = fill(ctx, dir, &l.growth)
		return err
	})
	if err != nil {
		return err
	}
	l.record.DiffID, l.record.From = l.DiffID, src
	data, err := json.Marshal(l.record)
	if err != nil {
		return err
	}
	l.tempDir, l.record.size = dir, int64(len(data))
	return os.WriteFile(filepath.Join(dir, l.record.name()), data, 0o600)
}

// settle renames a layer that is retained, ready and synced into the store.
func (ls *Store) settle(l *Layer) error {
	l.commit.Do(func() {
		if l.committed.Load() {
			return // it was found on disk
		}
		l.failed = os.Rename(l.tempDir, ls.path(l.DiffID))
		if errors.Is(l.failed, unix.ENOTEMPTY) || errors.Is(l.failed, unix.EEXIST) {
			// The remains of one that could not be deleted completely.
			if _, l.failed = ls.Discard(ls.path(l.DiffID), usageIn(ls.path(l.DiffID))); l.failed == nil {
				l.failed = os.Rename(l.tempDir, ls.path(l.DiffID))
			}
		}
		l.committed.Store(l.failed == nil)
	})
	return l.failed
}

// release drops a reference to l. The last one deletes it.
func (ls *Store) release(l *Layer) error {
	ls.mu.Lock()
	l.refs--
	if l.refs > 0 || ls.m[l.DiffID] != l && ls.unpacking[l.key] != l {
		ls.mu.Unlock()
		return nil
	}
	gone := make(chan struct{})
	l.gone = gone
	ready := l.isReady()
	ls.mu.Unlock()
	if ready {
		return ls.drop(l)
	}
	l.cancel()
	<-gone // unpack cleans up
	return nil
}

// drop deletes a layer that is going. The files of one that was part of an image are deleted
// later: that can take long (a disk mounted with discard is told of each), and no caller need
// wait for it. The layers of a failed pull are deleted at once, unless the store closes: then the
// next Open does it.
//
// A layer that cannot be deleted now stays, can be used again, and is deleted by Retry.
func (ls *Store) drop(l *Layer) error {
	var whole bool
	err := fault.Protect(func() (err error) { // who wants the layer again waits until it is gone
		if l.committed.Load() {
			whole, err = ls.Discard(ls.path(l.DiffID), l.record.usage())
			return err
		}
		return tree.Remove(ls.removals.life, l.tempDir)
	})
	ls.mu.Lock()
	if l.stuck = err != nil && whole; !l.stuck {
		ls.forget(l)
	}
	close(l.gone)
	l.gone = nil
	ls.mu.Unlock()
	if err != nil {
		return fmt.Errorf("remove layer %s: %w", l.DiffID, err)
	}
	return nil
}

// Retry deletes unreferenced layers that could not be deleted before.
func (ls *Store) Retry() error {
	ls.mu.Lock()
	var again []*Layer
	for _, l := range ls.m {
		if l.stuck && l.refs == 0 && l.gone == nil {
			l.gone = make(chan struct{})
			again = append(again, l)
		}
	}
	ls.mu.Unlock()
	var errs []error
	for _, l := range again {
		errs = append(errs, ls.drop(l))
	}
	return errors.Join(errs...)
}

// Discard moves the directory at path, which occupies u, out of the way, to be removed in the
// background: half a layer must never be found under a layer's name. It is no error if the path
// does not exist. After an error, whole reports whether the directory is still there with all
// its contents.
//
// Discard frees space on a full disk, so it must not need any: it creates no directory, and if
// staging is full, it removes the directory in place.
func (ls *Store) Discard(path string, u Usage) (whole bool, err error) {
	to := filepath.Join(ls.staging, "gone-"+rand.Text())
	err = os.Rename(path, to)
	switch {
	case err == nil:
		ls.removals.later(to, u)
		return false, nil
	case errors.Is(err, fs.ErrNotExist):
		if _, is := os.Lstat(path); is == nil {
			return true, err // staging is missing, not the path
		}
		return false, nil
	case !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT):
		return true, err
	}
	// Without its record it is neither layer nor lease, whatever else is left of it.
	for _, name := range []string{treeRecord, imageRecord, "lease.json"} {
		if err := os.Remove(filepath.Join(path, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return true, err
		}
	}
	return false, tree.Remove(ls.removals.life, path)
}

// RetainAll retains layers on disk: all of them or none.
func (ls *Store) RetainAll(ids []digest.Digest) ([]*Layer, error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	var layers []*Layer
	for _, id := range ids {
		l := ls.m[id]
		if l == nil || l.gone != nil {
			for _, l := range layers {
				l.refs--
				l.stuck = l.refs == 0 // it was stuck before
			}
			return nil, fault.NotFound.Errorf("layer %s does not exist", id)
		}
		l.refs++
		l.stuck = false
		layers = append(layers, l)
	}
	return layers, nil
}

func (l *Layer) isReady() bool {
	select {
	case <-l.ready:
		return l.err == nil
	default:
		return false
	}
}

// ReleaseAll releases each layer. Those without another reference are removed.
func (ls *Store) ReleaseAll(layers []*Layer) error {
	var errs []error
	for _, l := range layers {
		errs = append(errs, ls.release(l))
	}
	return errors.Join(errs...)
}

// Used returns the space that the layers occupy, including layers being unpacked and trees
// waiting for removal. It does not walk the disk.
func (ls *Store) Used() (bytes, inodes uint64) {
	bytes, inodes = ls.removals.used()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.m {
		u := l.record.usage()
		bytes, inodes = bytes+u.Bytes, inodes+u.Inodes
	}
	for _, l := range ls.unpacking {
		u := l.growth.usage()
		bytes, inodes = bytes+u.Bytes, inodes+u.Inodes
	}
	return bytes, inodes
}

// Size returns the bytes in the files of a ready layer; a file with several names counts once.
func (l *Layer) Size() uint64 { return l.record.Sum.Bytes }
