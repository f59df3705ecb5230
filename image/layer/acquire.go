package layer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

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
	for _, i := range order {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		all.Go(func() {
			defer func() { <-slots }()
			id := blobs[i].Identity(ids[i])
			l, mine, err := ls.acquire(ctx, id, source{blobs[i].Digest, from.Repository()}, ls.unpacker(from, blobs[i], ids[i]))
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
