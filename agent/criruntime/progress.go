package criruntime

import (
	"context"
	"fmt"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/pulls"
	v1 "k8s.io/api/core/v1"
)

// A PullWatcher knows how far pulls are.
type PullWatcher interface {
	// Follow calls report now and then, for as long as ctx, with how far the pull of image for
	// a pod, namespace/name, is. It returns earlier if that cannot be known.
	Follow(ctx context.Context, image, pod string, report func(pulls.Pull))
}

// follow records an event of the container when a quarter, half and three quarters of its
// image have come, until stop is called.
func (p *puller) follow(ctx context.Context, pod *v1.Pod, c *v1.Container, image string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		done := 0
		p.progress.Follow(ctx, image, podsync.KeyOf(pod).String(), func(far pulls.Pull) {
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

// quarters is how many quarters of an image have come; all of them have an event of their
// own, when the pull has ended.
func quarters(p pulls.Pull) int {
	f, ok := p.Fraction()
	if !ok || f == 1 {
		return 0
	}
	return int(4 * f)
}
