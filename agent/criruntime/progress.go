package criruntime

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/pulls"
	v1 "k8s.io/api/core/v1"
)

// A PullWatcher reports the progress of pulls.
type PullWatcher interface {
	// Follow calls report now and then, until ctx ends, with the progress of the pull of image
	// for a pod (namespace/name). It returns earlier if the progress cannot be known.
	Follow(ctx context.Context, image, pod string, report func(pulls.Pull))
}

// stuckAfter is how long nothing of an image may come before the next pull takes its turn.
const stuckAfter = 10 * time.Second

// follow records an event of the container when a quarter, half and three quarters of its
// image have come, until stop is called. It calls stuck when nothing has come for stuckAfter, and
// none of what has come waits for the disk.
func (p *puller) follow(ctx context.Context, pod *v1.Pod, c *v1.Container, image string, stuck func()) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		done, last, moved := 0, int64(0), time.Now()
		p.progress.Follow(ctx, image, podsync.KeyOf(pod).String(), func(far pulls.Pull) {
			unpacking := slices.ContainsFunc(far.Layers, func(l pulls.Layer) bool { return l.State == pulls.Unpacking })
			if f, _ := far.Fraction(); far.Bytes != last || unpacking || f == 1 {
				last, moved = far.Bytes, time.Now()
			} else if time.Since(moved) >= stuckAfter {
				stuck()
			}
			if q := quarters(far); q > done {
				done = q
				p.events.record(pod, c.Name, "", v1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q: %s of %s have come (%s)", c.Image, pulls.Size(far.Bytes), pulls.Size(far.Total), far))
			}
		})
	}()
	return func() {
		cancel()
		<-ended
	}
}

// quarters returns how many quarters of an image have arrived; 0 for all of it, for which the
// end of the pull records an event.
func quarters(p pulls.Pull) int {
	f, ok := p.Fraction()
	if !ok || f == 1 {
		return 0
	}
	return int(4 * f)
}
