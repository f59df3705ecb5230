package layer

import (
	"log/slog"
	"sync"
	"time"
)

// keepFor is how long the layers of a failed pull are kept: the kubelet tries again
// after at most five minutes.
const keepFor = 10 * time.Minute

// A keeper retains layers that were ready when the pull that wanted them failed. They are
// in staging, and in no image.
type keeper struct {
	layers *Store
	log    *slog.Logger

	mu sync.Mutex
	m  map[*Layer]*time.Timer // guarded by mu
}

// keep takes over layers that are retained.
func (k *keeper) keep(layers []*Layer) error {
	var spare []*Layer
	k.mu.Lock()
	if k.m == nil {
		k.m = make(map[*Layer]*time.Timer)
	}
	for _, l := range layers {
		if timer, ok := k.m[l]; ok {
			timer.Reset(keepFor)
			spare = append(spare, l)
			continue
		}
		k.m[l] = time.AfterFunc(keepFor, func() {
			if err := k.drop(l); err != nil {
				k.log.Error("layer of a failed pull was not removed", "layer", l.DiffID, "err", err)
			}
		})
	}
	k.mu.Unlock()
	return k.layers.ReleaseAll(spare)
}

func (k *keeper) drop(l *Layer) error {
	k.mu.Lock()
	timer, ok := k.m[l]
	delete(k.m, l)
	k.mu.Unlock()
	if !ok {
		return nil
	}
	timer.Stop()
	return k.layers.release(l)
}

// Keep takes over layers that are retained, for the next try of a pull that failed.
func (ls *Store) Keep(layers []*Layer) error { return ls.kept.keep(layers) }

// DropKept lets go of the layers that are kept for a next try, because their space is needed.
func (ls *Store) DropKept() error { return ls.kept.dropAll() }

// dropAll lets go of all layers, because the space is needed or the store closes.
func (k *keeper) dropAll() error {
	k.mu.Lock()
	var all []*Layer
	for l, timer := range k.m {
		timer.Stop()
		all = append(all, l)
	}
	clear(k.m)
	k.mu.Unlock()
	return k.layers.ReleaseAll(all)
}
