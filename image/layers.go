package image

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

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/tree"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// A layerRecord is what is known of an unpacked layer: the content of its
// layer.json, written before the layer's directory gets its name.
type layerRecord struct {
	DiffID digest.Digest
	Sum    sum
	Shape  shape
	From   source `json:",omitzero"` // what it was unpacked from
}

// A layer is one unpacked layer, or one that is being unpacked.
//
//	acquire ──▶ unpacking ──▶ staged ──▶ committed ──▶ going
//	                │  cancel    │                       ▲
//	                ▼            └───────────────────────┘
//	              going
//
// It is going when the last holder has let go; then its directory is deleted,
// and who wants the layer waits for that and begins anew. If it cannot be deleted it
// is committed again, and stuck.
type layer struct {
	diffID digest.Digest
	ready  chan struct{} // closed once record or err is set
	record layerRecord
	err    error

	losses    int64     // of the disk before the first byte was written
	staged    string    // its directory in staging, until it is committed
	commit    sync.Once // renames staged to where layers are
	failed    error     // of commit
	committed atomic.Bool

	sources []source           // guarded by layers.mu
	holders int                // guarded by layers.mu
	cancel  context.CancelFunc // ends the unpacking
	gone    chan struct{}      // guarded by layers.mu; not nil while going, closed at the end
	stuck   bool               // guarded by layers.mu; it should have been deleted
}

// layers are the layers on disk and those on their way there, by diff ID.
type layers struct {
	dir      string // where committed layers are
	staging  string
	unclean  bool
	disk     *disk
	removals *removals
	end      context.CancelFunc // of work in the background
	log      *slog.Logger

	mu      sync.Mutex
	m       map[digest.Digest]*layer // guarded by mu
	running sync.WaitGroup           // unpacking

	kept keeper
}

// path is the directory of a committed layer.
func (ls *layers) path(id digest.Digest) string { return filepath.Join(ls.dir, id.Encoded()) }

// files is the directory with a committed layer's files.
func (ls *layers) files(id digest.Digest) string { return filepath.Join(ls.path(id), "fs") }

// An unpackFunc unpacks a layer into an empty directory.
type unpackFunc func(ctx context.Context, dir string) (shape, error)

// acquire returns the layer id and holds it; mine tells that it was unpacked for this
// call, from the blob that from names. If the layer is not there, unpack is called, unless the same layer is being unpacked for somebody else: then
// that is waited for. unpack's context ends when nobody waits any more; acquire
// does not return before unpack has, even if ctx is done and others still wait.
func (ls *layers) acquire(ctx context.Context, id digest.Digest, from source, unpack unpackFunc) (l *layer, mine bool, err error) {
	for {
		l, mine, err := ls.hold(ctx, id, from, unpack)
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
				<-l.ready // unpack uses what is the caller's
			}
			return nil, false, ctx.Err()
		}
		if l.err == nil {
			return l, mine, nil
		}
		if err := ls.release(l); err != nil {
			return nil, false, err
		}
		// Somebody else's failure need not be ours: he may lack credentials.
		if mine || ctx.Err() != nil {
			return nil, false, l.err
		}
	}
}

// hold finds the layer id or begins to unpack it; mine tells which. A layer that
// is going is waited for.
func (ls *layers) hold(ctx context.Context, id digest.Digest, from source, unpack unpackFunc) (l *layer, mine bool, err error) {
	for {
		ls.mu.Lock()
		l = ls.m[id]
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
		l = &layer{diffID: id, ready: make(chan struct{}), cancel: cancel}
		ls.m[id] = l
		mine = true
		ls.running.Go(func() {
			defer cancel()
			ls.unpack(own, l, from, unpack)
		})
	}
	l.holders++
	l.stuck = false
	return l, mine, nil
}

// unpack makes l ready.
func (ls *layers) unpack(ctx context.Context, l *layer, from source, unpack unpackFunc) {
	l.err = ls.stage(ctx, l, from, unpack)
	ls.learn(l, from)
	ls.mu.Lock()
	going := l.gone // everybody left
	if l.err != nil {
		if ls.m[l.diffID] == l {
			delete(ls.m, l.diffID)
		}
		if going != nil {
			close(going)
		}
	}
	close(l.ready) // under the lock: release looks at both
	ls.mu.Unlock()
	if l.err == nil && going != nil {
		if err := ls.drop(l); err != nil {
			ls.log.Error("unpacked layer nobody wants was not removed", "layer", l.diffID, "err", err)
		}
	}
}

// stage unpacks l into a directory of its own in staging.
func (ls *layers) stage(ctx context.Context, l *layer, from source, unpack unpackFunc) (err error) {
	l.losses = ls.disk.losses.Load()
	dir, err := os.MkdirTemp(ls.staging, "layer-*")
	if err != nil {
		return fmt.Errorf("make staging directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tree.Remove(context.WithoutCancel(ctx), dir))
		}
	}()
	files := filepath.Join(dir, "fs")
	if err := os.Mkdir(files, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(files, 0o755); err != nil { // whatever the umask
		return err
	}
	shape, err := unpack(ctx, files)
	if err != nil {
		return err
	}
	s, err := measure(ctx, files)
	if err != nil {
		return err
	}
	l.record = layerRecord{DiffID: l.diffID, Sum: s, Shape: shape, From: from}
	data, err := json.Marshal(l.record)
	if err != nil {
		return err
	}
	l.staged = dir
	return os.WriteFile(filepath.Join(dir, "layer.json"), data, 0o600)
}

// settle gives a layer that is held, ready and synced its name in the store.
func (ls *layers) settle(l *layer) error {
	l.commit.Do(func() {
		if l.committed.Load() {
			return // it was found on disk
		}
		l.failed = os.Rename(l.staged, ls.path(l.diffID))
		if errors.Is(l.failed, unix.ENOTEMPTY) || errors.Is(l.failed, unix.EEXIST) {
			// What is left of one that could not be deleted whole.
			if _, l.failed = ls.discard(ls.path(l.diffID), usageIn(ls.path(l.diffID))); l.failed == nil {
				l.failed = os.Rename(l.staged, ls.path(l.diffID))
			}
		}
		l.committed.Store(l.failed == nil)
	})
	return l.failed
}

// release lets go of l. The last to do so has it deleted.
func (ls *layers) release(l *layer) error {
	ls.mu.Lock()
	l.holders--
	if l.holders > 0 || ls.m[l.diffID] != l {
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

// drop deletes a layer that is going. The files of one that was part of an image
// go later: that can take long (a disk mounted with discard is told of each), and
// nobody need wait for it. What a failed pull leaves goes at once.
//
// A layer that cannot be deleted now stays, for who wants it, and retry tries again.
func (ls *layers) drop(l *layer) error {
	var whole bool
	var err error
	if l.committed.Load() {
		whole, err = ls.discard(ls.path(l.diffID), l.record.usage())
	} else {
		err = tree.Remove(context.Background(), l.staged)
	}
	ls.mu.Lock()
	if l.stuck = err != nil && whole; !l.stuck {
		delete(ls.m, l.diffID)
	}
	close(l.gone)
	l.gone = nil
	ls.mu.Unlock()
	if err != nil {
		return fmt.Errorf("remove layer %s: %w", l.diffID, err)
	}
	return nil
}

// retry deletes the layers that nobody holds and that could not be deleted.
func (ls *layers) retry() error {
	ls.mu.Lock()
	var again []*layer
	for _, l := range ls.m {
		if l.stuck && l.holders == 0 && l.gone == nil {
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

// discard takes the directory at path, which occupies u, away, to be removed in the
// background: half a layer must never be found under a layer's name. A path that is not
// there is no error. After an error, whole tells whether it is still there with all that
// is in it.
//
// It is how room is made on a full disk, so it must not need any: there is no
// directory to make, and if staging is full, what is at path is removed in its place.
func (ls *layers) discard(path string, u usage) (whole bool, err error) {
	to := filepath.Join(ls.staging, "gone-"+rand.Text())
	err = os.Rename(path, to)
	switch {
	case err == nil:
		ls.removals.later(to, u)
		return false, nil
	case errors.Is(err, fs.ErrNotExist):
		if _, is := os.Lstat(path); is == nil {
			return true, err // it is staging that is not there
		}
		return false, nil
	case !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT):
		return true, err
	}
	// Without its record it is no layer and no lease, whatever else is left of it.
	for _, name := range []string{"layer.json", "lease.json"} {
		if err := os.Remove(filepath.Join(path, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return true, err
		}
	}
	return false, tree.Remove(context.Background(), path)
}

// holdAll holds layers that are on disk: all of them or none.
func (ls *layers) holdAll(ids []digest.Digest) ([]*layer, error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	var held []*layer
	for _, id := range ids {
		l := ls.m[id]
		if l == nil || l.gone != nil || !l.isReady() {
			for _, l := range held {
				l.holders--
				l.stuck = l.holders == 0 // it was before
			}
			return nil, fault.NotFound.Errorf("layer %s is not there", id)
		}
		l.holders++
		l.stuck = false
		held = append(held, l)
	}
	return held, nil
}

func (l *layer) isReady() bool {
	select {
	case <-l.ready:
		return l.err == nil
	default:
		return false
	}
}

// releaseAll lets go of each.
func (ls *layers) releaseAll(held []*layer) error {
	var errs []error
	for _, l := range held {
		errs = append(errs, ls.release(l))
	}
	return errors.Join(errs...)
}

// used tells what the layers occupy, with what is still to be removed. It walks nothing on
// disk.
func (ls *layers) used() (bytes, inodes uint64) {
	bytes, inodes = ls.removals.used()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.m {
		if l.isReady() {
			bytes += l.record.Sum.Disk
			inodes += l.record.Sum.Inodes
		}
	}
	return bytes, inodes
}

// size is the bytes in the files of a layer that is ready; a file with several names
// counts once.
func (l *layer) size() uint64 { return l.record.Sum.Bytes }
