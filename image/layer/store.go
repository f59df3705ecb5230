package layer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/image/erofs"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
)

// Options say where layers are kept.
type Options struct {
	Root    string          // on the disk that holds them; has directories layers and staging
	Unclean bool            // the machine went down without a clean stop: verify the layers committed last
	Squash  bool            // root owns the files of a layer whose owners are not in crispd's user namespace
	EROFS   bool            // new layers become EROFS file systems, if the kernel can mount those from files
	Life    context.Context // of work in the background, which ends with it
	Log     *slog.Logger
}

// Open finds the layers on disk. It removes unfinished work and damaged layers, and retains
// none: see DropUnused.
func Open(ctx context.Context, o Options) (_ *Store, err error) {
	life, end := context.WithCancel(o.Life)
	ls := &Store{
		dir:       filepath.Join(o.Root, "layers"),
		staging:   filepath.Join(o.Root, "staging"),
		unclean:   o.Unclean,
		squash:    o.Squash,
		probe:     sync.OnceValue(func() error { return probeEROFS(filepath.Join(o.Root, "staging")) }),
		removals:  newRemovals(life, o.Log),
		end:       end,
		log:       o.Log,
		m:         make(map[digest.Digest]*Layer),
		unpacking: make(map[fillKey]*Layer),
		kept:      make(map[*Layer]*time.Timer),
	}
	if ls.disk, err = openDisk(o.Root); err != nil {
		end()
		return nil, err
	}
	ls.sweepStaging()
	if err := ls.findLayers(ctx); err != nil {
		return nil, errors.Join(err, ls.Close())
	}
	ls.erofs = o.EROFS && ls.probe() == nil
	return ls, nil
}

// probeEROFS checks whether EROFS file systems can be mounted; tests replace it.
var probeEROFS = erofs.Probe

// LacksEROFS returns why EROFS file systems cannot be mounted from files of the store, or nil.
func (ls *Store) LacksEROFS() error { return ls.probe() }

// Close ends background work. Layers that failed pulls have kept are left to the next Open, unless
// DropKept was called before.
func (ls *Store) Close() error {
	ls.end()
	ls.takeKept()
	ls.running.Wait()
	ls.removals.background.Wait()
	return ls.disk.close()
}

// sweepStaging removes unfinished work. Names in staging are never reused, so no caller need
// wait for it.
func (ls *Store) sweepStaging() {
	left, err := os.ReadDir(ls.staging)
	if err != nil {
		ls.log.Error("staging was not swept", "err", err)
		return
	}
	for _, d := range left {
		path := filepath.Join(ls.staging, d.Name())
		ls.removals.later(path, usageIn(path))
	}
}

// findLayers reads the records of the layers on disk. A directory without a record is not a
// layer.
func (ls *Store) findLayers(ctx context.Context) error {
	dirs, err := os.ReadDir(ls.dir)
	if err != nil {
		return fmt.Errorf("list layers: %w", err)
	}
	var found []*Layer
	for _, d := range dirs {
		l, err := readLayer(filepath.Join(ls.dir, d.Name()))
		if err != nil && !atomicfile.Damaged(err) && !errors.Is(err, fault.Invalid) {
			return fmt.Errorf("read layer %s: %w", d.Name(), err)
		}
		if err != nil {
			ls.log.Warn("broken layer was dropped", "layer", d.Name(), "err", err)
			ls.discardLayer(d.Name())
			continue
		}
		if l.record.EROFS && erofs.Lacking(ls.probe()) {
			ls.log.Warn("layer that this kernel cannot mount was dropped", "layer", d.Name(), "err", ls.probe())
			ls.discardLayer(d.Name())
			continue
		}
		found = append(found, l)
	}
	if ls.unclean {
		if found, err = ls.verifyLatest(ctx, found); err != nil {
			return err
		}
	}
	for _, l := range found {
		ls.m[l.DiffID] = l
	}
	return nil
}

// discardLayer drops a directory that cannot be used as a layer. If that fails, it blocks only
// its own next pull, which tries again.
func (ls *Store) discardLayer(name string) {
	path := filepath.Join(ls.dir, name)
	if _, err := ls.Discard(path, usageIn(path)); err != nil {
		ls.log.Error("broken layer was not removed", "layer", name, "err", err)
	}
}

func readLayer(dir string) (*Layer, error) {
	r, err := readRecord(dir)
	if err != nil {
		return nil, err
	}
	l := &Layer{ready: make(chan struct{}), record: r}
	l.DiffID = l.record.DiffID
	if l.record.From.Blob != "" {
		l.sources = []source{l.record.From}
	}
	l.committed.Store(true)
	if l.DiffID.Validate() != nil || l.DiffID.Encoded() != filepath.Base(dir) {
		return nil, fault.Invalid.Errorf("record is of layer %q", l.DiffID)
	}
	close(l.ready)
	return l, nil
}

// DropUnused removes the layers that neither an image nor a root file system uses.
func (ls *Store) DropUnused() {
	for _, l := range ls.m {
		l.stuck = l.refs == 0
	}
	if err := ls.Retry(); err != nil {
		ls.log.Error("unused layers were not removed", "err", err)
	}
}
