package criruntime

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/periodic"
	"github.com/crisp-cri/crisp/internal/poke"
)

const (
	// relistPeriod is how often to relist without a hint.
	relistPeriod = 2 * time.Second
	// gather is how long to wait after an event for more: a pod that starts or ends
	// causes several.
	gather = 20 * time.Millisecond
	// reconnect is the first pause before the event stream is opened again. Pauses
	// double, up to reconnectMax, until an event arrives.
	reconnect    = time.Second
	reconnectMax = time.Minute
)

// A plegRuntime lists and streams the state that a PLEG watches.
type plegRuntime interface {
	// States returns the states of all sandboxes and containers of each pod of this agent.
	States(ctx context.Context) (map[podsync.Key]States, error)
	// Stream sends the runtime's events until the stream or ctx ends.
	Stream(ctx context.Context, out chan *cri.ContainerEventResponse) error
}

// States are the states of a pod's sandboxes and containers by ID.
type States map[string]int32

// A PLEG detects changes in the runtime. The name is the kubelet's: pod lifecycle event generator.
//
// A relist finds the changes: it lists sandboxes and containers and compares them with the
// previous lists. An event of the runtime is only a hint that a relist is worthwhile. So a lost
// event costs at most one period, and a runtime without events, or one that restarts, needs no
// special case.
type PLEG struct {
	runtime plegRuntime
	log     *slog.Logger

	last atomic.Int64 // when a relist last succeeded, or Run began, in Unix nanoseconds; 0 before
}

// NewPLEG returns a PLEG that has not listed yet.
func NewPLEG(runtime plegRuntime, log *slog.Logger) *PLEG { return &PLEG{runtime: runtime, log: log} }

// silence is how long relists may fail before Health fails, as in the kubelet.
const silence = 3 * time.Minute

// Health returns an error if no relist has succeeded for silence, even if the runtime answers
// other calls. Before Run it returns nil.
func (g *PLEG) Health() error {
	last := g.last.Load()
	if since := time.Since(time.Unix(0, last)); last != 0 && since > silence {
		return fmt.Errorf("the runtime has listed no pods for %s", since.Round(time.Second))
	}
	return nil
}

// A Change is the result of one relist.
type Change struct {
	// Keys are the pods that have changed, appeared or disappeared since the last relist.
	Keys []podsync.Key
	// Back is true if the runtime answers for the first time, or again.
	Back bool
}

// Run sends a Change whenever a relist finds one, until ctx ends.
func (g *PLEG) Run(ctx context.Context, out chan<- Change) {
	g.last.Store(time.Now().UnixNano())
	hints := make(chan struct{}, 1)
	go g.listen(ctx, hints)
	ticker := time.NewTicker(relistPeriod)
	defer ticker.Stop()
	var last map[podsync.Key]States
	answers := false
	for ctx.Err() == nil {
		now, err := g.runtime.States(ctx)
		switch {
		case err == nil:
			g.last.Store(time.Now().UnixNano())
			change := Change{Keys: differ(last, now), Back: !answers}
			if change.Back {
				g.log.InfoContext(ctx, "runtime answered", "pods", len(now))
			}
			last, answers = now, true
			if len(change.Keys) > 0 || change.Back {
				select {
				case out <- change:
				case <-ctx.Done():
				}
			}
		case answers && ctx.Err() == nil:
			g.log.WarnContext(ctx, "runtime does not answer", "err", err)
			answers = false
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		case <-hints:
			periodic.Pause(ctx, gather)
		}
	}
}

// differ returns the keys whose states differ between a and b.
func differ(a, b map[podsync.Key]States) []podsync.Key {
	var keys []podsync.Key
	for key, states := range b {
		if old, ok := a[key]; !ok || !maps.Equal(old, states) {
			keys = append(keys, key)
		}
	}
	for key := range a {
		if _, ok := b[key]; !ok {
			keys = append(keys, key)
		}
	}
	return keys
}

// listen turns events into hints, and reopens the stream whenever it ends.
func (g *PLEG) listen(ctx context.Context, hints chan<- struct{}) {
	wait := backoff.New(reconnect, reconnectMax)
	for ctx.Err() == nil {
		events := make(chan *cri.ContainerEventResponse, 64)
		ended := make(chan error, 1)
		go func() { ended <- g.runtime.Stream(ctx, events) }()
		var retry time.Duration
		open := true
		for open {
			select {
			case <-events:
				wait = backoff.New(reconnect, reconnectMax)
				poke.Wake(hints)
			case err := <-ended:
				open, retry = false, wait.Next()
				g.log.DebugContext(ctx, "event stream ended", "err", err, "retry", retry)
			}
		}
		periodic.Pause(ctx, retry)
	}
}

// States lists what the runtime has of this agent's pods, as plegRuntime says.
func (d *Driver) States(ctx context.Context) (map[podsync.Key]States, error) {
	sandboxes, err := d.runtime.ListPodSandbox(ctx, &cri.PodSandboxFilter{LabelSelector: d.mine()})
	if err != nil {
		return nil, Fault(err)
	}
	containers, err := d.runtime.ListContainers(ctx, &cri.ContainerFilter{LabelSelector: d.mine()})
	if err != nil {
		return nil, Fault(err)
	}
	all := map[podsync.Key]States{}
	note := func(labels map[string]string, id string, state int32) {
		key := podsync.Key{Namespace: labels[podspec.LabelPodNamespace], Name: labels[podspec.LabelPodName]}
		if all[key] == nil {
			all[key] = States{}
		}
		all[key][id] = state
	}
	for _, sb := range sandboxes {
		note(sb.Labels, sb.Id, int32(sb.State))
	}
	for _, c := range containers {
		note(c.Labels, c.Id, int32(c.State))
	}
	return all, nil
}

// Stream sends the runtime's container events, as plegRuntime says.
func (d *Driver) Stream(ctx context.Context, out chan *cri.ContainerEventResponse) error {
	return Fault(d.runtime.GetContainerEvents(ctx, out, nil))
}
