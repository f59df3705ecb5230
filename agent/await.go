package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"

	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/poke"
)

// connectRetry is how long the agent waits before it tries to connect again. It
// may have been started before the runtime.
const connectRetry = time.Second

// deferChanges adds changes to those that wait for the runtime. A pod that is changed
// while its addition waits is still to be added, and one that is removed needs nothing.
func deferChanges(deferred, changes []desired.Change) []desired.Change {
	for _, c := range changes {
		i := slices.IndexFunc(deferred, func(h desired.Change) bool { return h.Key == c.Key })
		switch {
		case c.Op == desired.Remove && i >= 0:
			deferred = slices.Delete(deferred, i, i+1)
		case c.Op == desired.Remove:
		case i >= 0:
			deferred[i].Pod = c.Pod
		default:
			deferred = append(deferred, desired.Change{Op: desired.Add, Key: c.Key, Pod: c.Pod})
		}
	}
	return deferred
}

// An answer is a runtime that has answered, or why none ever will.
type answer struct {
	runtime internalapi.RuntimeService
	images  internalapi.ImageManagerService
	err     error
}

// connect returns the first answer, or an empty one when ctx has ended. It wakes tried
// after each attempt that it will repeat.
func connect(ctx context.Context, o Options, tried chan<- struct{}) answer {
	complaint := ""
	for ctx.Err() == nil {
		runtime, images, err := o.Connect(ctx)
		if err == nil || errors.Is(err, fault.Invalid) {
			return answer{runtime, images, err}
		}
		if text := err.Error(); text != complaint {
			o.Log.WarnContext(ctx, "runtime is not there yet", "err", err)
			complaint = text
		}
		poke.Wake(tried)
		select {
		case <-ctx.Done():
		case <-time.After(connectRetry):
		}
	}
	return answer{err: ctx.Err()}
}
