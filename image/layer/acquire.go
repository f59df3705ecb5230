package layer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/opencontainers/go-digest"
)

// AcquireAll acquires the layers that the blobs unpack to; ids are the digests of their content
// if that is a tar. It returns the retained layers in order; with an error, perhaps not all of
// them. It begins with the largest, which takes longest, and handles at most parallel at once.
func (ls *Store) AcquireAll(ctx context.Context, from blob.Origin, blobs []blob.Blob, ids []digest.Digest, parallel int) ([]*Layer, error) {
	order := make([]int, len(blobs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(blobs[b].Size, blobs[a].Size) })

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	layers := make([]*Layer, len(blobs))
	slots := make(chan struct{}, parallel)
	var all sync.WaitGroup
	var claimed atomic.Int64
	for _, i := range order {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		all.Go(func() {
			defer func() { <-slots }()
			id := blobs[i].Identity(ids[i])
			l, mine, err := ls.acquire(ctx, id, source{blobs[i].Digest, from.Repository()}, ls.unpacker(from, blobs[i], ids[i], &claimed))
			layers[i] = l
			if err == nil && !mine {
				err = entitle(ctx, ls, l, from, blobs[i], ids[i])
			}
			if err != nil {
				cancel(fmt.Errorf("layer %s: %w", id, err)) // the first one is why
			}
		})
	}
	all.Wait()
	layers = slices.DeleteFunc(layers, func(l *Layer) bool { return l == nil })
	return layers, context.Cause(ctx)
}

// CommitAll syncs retained layers to disk and renames them into place. It also fails if the disk
// has lost anything written since the first of them was begun.
func (ls *Store) CommitAll(ctx context.Context, layers []*Layer) error {
	var fresh []*Layer
	for _, l := range layers {
		if !l.committed.Load() {
			fresh = append(fresh, l)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	first := slices.MinFunc(fresh, func(a, b *Layer) int { return cmp.Compare(a.losses, b.losses) })
	if err := ls.disk.sync(ctx, first.losses); err != nil {
		return err
	}
	for _, l := range layers {
		if err := ls.settle(l); err != nil {
			return fmt.Errorf("commit layer %s: %w", l.DiffID, err)
		}
	}
	return atomicfile.SyncDir(ls.dir)
}

// keepFor is how long the layers of a failed pull are kept: the kubelet retries after at most
// five minutes.
const keepFor = 10 * time.Minute

// Keep takes over layers that are retained and ready, for the next try of a pull that failed. They
// are in staging, and in no image.
func (ls *Store) Keep(layers []*Layer) error {
	var spare []*Layer
	ls.keeping.Lock()
	for _, l := range layers {
		if timer, ok := ls.kept[l]; ok {
			timer.Reset(keepFor)
			spare = append(spare, l)
			continue
		}
		ls.kept[l] = time.AfterFunc(keepFor, func() {
			if err := ls.dropKept(l); err != nil {
				ls.log.Error("layer of a failed pull was not removed", "layer", l.DiffID, "err", err)
			}
		})
	}
	ls.keeping.Unlock()
	return ls.ReleaseAll(spare)
}

func (ls *Store) dropKept(l *Layer) error {
	ls.keeping.Lock()
	timer, ok := ls.kept[l]
	delete(ls.kept, l)
	ls.keeping.Unlock()
	if !ok {
		return nil
	}
	timer.Stop()
	return ls.release(l)
}

// DropKept lets go of the layers that are kept for a next try, because their space is needed or
// the store closes.
func (ls *Store) DropKept() error { return ls.ReleaseAll(ls.takeKept()) }

// takeKept returns the layers that are kept, and keeps them no longer.
func (ls *Store) takeKept() []*Layer {
	ls.keeping.Lock()
	defer ls.keeping.Unlock()
	var all []*Layer
	for l, timer := range ls.kept {
		timer.Stop()
		all = append(all, l)
	}
	clear(ls.kept)
	return all
}
