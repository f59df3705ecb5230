package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"

	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/poke"
)

// connectRetry is how long the agent waits before it tries to connect again. It
// may have been started before the runtime.
const connectRetry = time.Second

// await waits for the runtime to answer for the first time; it is the loop until
// then. Sources report and objects are served meanwhile. held are the changes that
// the loop is to begin with. An error means that no runtime will ever answer there:
// then nothing has been begun. When ctx has ended all is nil.
func (a *agent) await(ctx context.Context, updates chan source.Update) (runtime internalapi.RuntimeService, images internalapi.ImageManagerService, held []desired.Change, err error) {
	answered, tried := make(chan struct{}), make(chan struct{}, 1)
	go func() {
		defer close(answered)
		runtime, images, err = connect(ctx, a.o, tried)
	}()
	begin := sync.OnceFunc(func() {
		a.o.Log.InfoContext(ctx, "agent started", "node", a.o.NodeName, "manifests", a.o.Manifests)
		a.startSources(ctx, updates)
	})
	pulse := time.NewTicker(tick)
	defer pulse.Stop()
	for {
		a.beat.Store(time.Now().UnixNano())
		select {
		case <-answered:
			if err == nil {
				begin()
			}
			return runtime, images, held, err
		case <-tried:
			begin()
		case <-pulse.C:
		case u := <-updates:
			changes, _ := a.read(ctx, u)
			held = hold(held, changes)
			a.api.Poke()
		case <-a.wanted.Due():
			held = hold(held, a.wanted.Reconcile())
			a.api.Poke()
		}
	}
}

// hold adds changes to those that nobody has been told of. To who knows none of
// them, a pod that was changed since is a new one still, and one that is gone has
// never been.
func hold(held, changes []desired.Change) []desired.Change {
	for _, c := range changes {
		i := slices.IndexFunc(held, func(h desired.Change) bool { return h.Key == c.Key })
		switch {
		case c.Op == desired.Remove && i >= 0:
			held = slices.Delete(held, i, i+1)
		case c.Op == desired.Remove:
		case i >= 0:
			held[i].Pod = c.Pod
		default:
			held = append(held, desired.Change{Op: desired.Add, Key: c.Key, Pod: c.Pod})
		}
	}
	return held
}

// connect returns a runtime that has answered, or nothing when ctx has ended. An
// error means that none will ever answer there. tried is told of each attempt that
// there will be another one after.
func connect(ctx context.Context, o Options, tried chan<- struct{}) (internalapi.RuntimeService, internalapi.ImageManagerService, error) {
	complaint := ""
	for ctx.Err() == nil {
		runtime, images, err := o.Connect(ctx)
		if err == nil || errors.Is(err, fault.Invalid) {
			return runtime, images, err
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
	return nil, nil, nil
}
