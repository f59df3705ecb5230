package layer

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/tree"
)

// removeWait is how long Remove waits for the disk. The kubelet measures the disk right
// afterwards, and evicts pods if removing images did not help.
const removeWait = 20 * time.Second

// removals are the trees out of the way that are being removed or wait for that. They still
// occupy their space.
type removals struct {
	life       context.Context // of the background work
	log        *slog.Logger
	background sync.WaitGroup
	turn       chan struct{} // holds a token while a tree is removed: two at once would not be faster

	mu   sync.Mutex
	last int              // guarded by mu
	m    map[int]*removal // by order of arrival; guarded by mu
}

type removal struct {
	usage Usage
	over  chan struct{} // closed once a removal was attempted
}

func newRemovals(life context.Context, log *slog.Logger) *removals {
	return &removals{life: life, log: log, turn: make(chan struct{}, 1), m: make(map[int]*removal)}
}

func (rs *removals) add(u Usage) (n int, r *removal) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.last++
	r = &removal{usage: u, over: make(chan struct{})}
	rs.m[rs.last] = r
	return rs.last, r
}

// forget records that a tree is gone.
func (rs *removals) forget(n int) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.m, n)
}

func (rs *removals) used() (bytes, inodes uint64) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.m {
		bytes += r.usage.Bytes
		inodes += r.usage.Inodes
	}
	return bytes, inodes
}

// LastRemoval returns a point in time for WaitRemoved.
func (ls *Store) LastRemoval() int { return ls.removals.now() }

// WaitRemoved waits until everything discarded since that point in time is removed, but no
// longer than removeWait, or until ctx ends.
func (ls *Store) WaitRemoved(ctx context.Context, since int) { ls.removals.waitSince(ctx, since) }

// now returns a point in time for waitSince.
func (rs *removals) now() int {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.last
}

// waitSince waits until everything added since that point in time is removed, but no longer than
// removeWait, or until ctx ends.
func (rs *removals) waitSince(ctx context.Context, point int) {
	ctx, cancel := context.WithTimeout(ctx, removeWait)
	defer cancel()
	rs.mu.Lock()
	var all []*removal
	for n, r := range rs.m {
		if n > point {
			all = append(all, r)
		}
	}
	rs.mu.Unlock()
	for _, r := range all {
		select {
		case <-r.over:
		case <-ctx.Done():
			return
		}
	}
}

// Removing a tree is retried after removeRetry, twice that, and so on up to removeRetryMax.
const (
	removeRetry    = time.Second
	removeRetryMax = 10 * time.Minute
)

// later deletes a tree that is out of the way, and occupies u, in the background. Until it is
// removed it counts as used.
func (rs *removals) later(path string, u Usage) {
	n, r := rs.add(u)
	rs.background.Go(func() {
		err := rs.remove(path)
		if err == nil {
			rs.forget(n) // before those who wait for it read the usage
		}
		close(r.over)
		if err == nil {
			return
		}
		if rs.life.Err() == nil {
			rs.log.Error("leftover of the image store was not removed, and will be tried again", "err", err)
		}
		for pause := backoff.New(removeRetry, removeRetryMax); err != nil; err = rs.remove(path) {
			if pause.Wait(rs.life) != nil {
				return
			}
		}
		rs.forget(n)
	})
}

// remove deletes a tree when it is its turn.
func (rs *removals) remove(path string) error {
	rs.turn <- struct{}{}
	defer func() { <-rs.turn }()
	return tree.Remove(rs.life, path)
}

// usageIn returns what the layer in dir occupied when it was complete, if it has a record.
func usageIn(dir string) Usage {
	r, err := readRecord(dir)
	if err != nil {
		return Usage{}
	}
	return r.usage()
}

// usage is what a layer occupies, with its record.
func (r record) usage() Usage {
	return Usage{r.Sum.Disk + uint64(r.size+-r.size&(block-1)), r.Sum.Inodes}
}
