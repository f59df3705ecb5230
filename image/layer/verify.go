package layer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"golang.org/x/sys/unix"
)

// suspectFor is how long before the last commit a layer is suspect after a power cut. syncfs(2)
// had returned before any of them was renamed into place; the risk is a disk that reported
// success too early.
const suspectFor = 10 * time.Minute

// verifyLatest compares the metadata of the layers committed last with their records, drops
// those that differ, and returns the rest. Older ones are trusted: reading them all would keep a
// node from coming up.
func (ls *Store) verifyLatest(ctx context.Context, found []*Layer) ([]*Layer, error) {
	var good []*Layer
	suspects := latest(ls.commits(found), time.Now())
	for i, l := range found {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !suspects[i] {
			good = append(good, l)
			continue
		}
		got, err := ls.check(ctx, l)
		if err != nil {
			got, err = ls.check(ctx, l) // a transient error is not the layer's fault
		}
		if err != nil && !atomicfile.Damaged(err) && !errors.Is(err, fault.Invalid) {
			return nil, fmt.Errorf("verify layer %s: %w", l.DiffID, err)
		}
		if err == nil && got == l.record.Sum.Digest {
			good = append(good, l)
			continue
		}
		ls.log.Warn("layer damaged by the power cut was dropped", "layer", l.DiffID, "err", err)
		ls.discardLayer(l.DiffID.Encoded())
	}
	return good, nil
}

// commits returns the time at which each layer was committed: rename(2) sets the status change
// time of what it moves. That is later than the end of unpacking, by as long as the rest of its
// image took.
func (ls *Store) commits(found []*Layer) []time.Time {
	at := make([]time.Time, len(found))
	for i, l := range found {
		var st unix.Stat_t
		if err := unix.Lstat(ls.path(l.DiffID), &st); err != nil {
			ls.log.Warn("time of a layer's commit is unknown", "layer", l.DiffID, "err", os.NewSyscallError("lstat", err))
			continue
		}
		at[i] = time.Unix(st.Ctim.Unix())
	}
	return at
}

// latest reports which of the times are at most suspectFor before the last one. A clock that was
// once ahead must not make all later times old: so times at most that long before the last one
// that is not in the future count too.
func latest(at []time.Time, now time.Time) []bool {
	var last, past time.Time
	for _, t := range at {
		if t.After(last) {
			last = t
		}
		if t.After(past) && !t.After(now) {
			past = t
		}
	}
	is := make([]bool, len(at))
	for i, t := range at {
		is[i] = last.Sub(t) <= suspectFor || !t.After(past) && past.Sub(t) <= suspectFor
	}
	return is
}
