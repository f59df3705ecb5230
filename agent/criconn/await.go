package criconn

import (
	"context"
	"errors"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/periodic"
	"github.com/crisp-cri/crisp/internal/poke"
)

// retry is how long Await waits before it calls dial again. The agent may be started before
// the runtime.
const retry = time.Second

// An Answer has the services of a runtime that has answered, or why none ever will.
type Answer struct {
	Runtime internalapi.RuntimeService
	Images  internalapi.ImageManagerService
	Err     error
}

// Await calls dial, every retry, until it succeeds or fails with an error of kind
// fault.Invalid, and returns the result; once ctx has ended, an Answer with its error. It
// wakes tried after each attempt that it will repeat.
func (c *Connection) Await(ctx context.Context, dial func(context.Context) (internalapi.RuntimeService, internalapi.ImageManagerService, error), tried chan<- struct{}) Answer {
	complaint := ""
	for ctx.Err() == nil {
		runtime, images, err := dial(ctx)
		if err == nil || errors.Is(err, fault.Invalid) {
			return Answer{runtime, images, err}
		}
		if text := err.Error(); text != complaint {
			c.log.WarnContext(ctx, "runtime does not answer yet", "err", err)
			complaint = text
		}
		poke.Wake(tried)
		periodic.Pause(ctx, retry)
	}
	return Answer{Err: ctx.Err()}
}
