package criruntime_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/podsync"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type runtime struct {
	mu     sync.Mutex
	states map[string]int32 // of the only object of each pod; nil if the runtime does not answer
	lists  int
	events chan *cri.ContainerEventResponse
}

func (r *runtime) set(states map[string]int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states = states
}

func (r *runtime) States(context.Context) (map[podsync.Key]criruntime.States, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lists++
	if r.states == nil {
		return nil, errors.New("runtime is away")
	}
	all := map[podsync.Key]criruntime.States{}
	for name, state := range r.states {
		all[podsync.Key{Name: name}] = criruntime.States{"id": state}
	}
	return all, nil
}

func (r *runtime) Stream(ctx context.Context, out chan *cri.ContainerEventResponse) error {
	for {
		select {
		case e, ok := <-r.events:
			if !ok {
				return errors.New("not implemented")
			}
			out <- e
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func bubble(t *testing.T, f func(t *testing.T, r *runtime, changes chan criruntime.Change)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := &runtime{events: make(chan *cri.ContainerEventResponse)}
		changes := make(chan criruntime.Change)
		g := criruntime.NewPLEG(r, slog.New(slog.NewTextHandler(io.Discard, nil)))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			g.Run(ctx, changes)
		}()
		f(t, r, changes)
		cancel()
		<-ended
	})
}

func expect(t *testing.T, changes chan criruntime.Change, back bool, names ...string) {
	t.Helper()
	c := <-changes
	var got []string
	for _, k := range c.Keys {
		got = append(got, k.Name)
	}
	slices.Sort(got)
	if !slices.Equal(got, names) || c.Back != back {
		t.Errorf("got %v, back %v; want %v, %v", got, c.Back, names, back)
	}
}

// A relist reports exactly the changes since the previous one.
func TestRelist(t *testing.T) {
	bubble(t, func(t *testing.T, r *runtime, changes chan criruntime.Change) {
		r.set(map[string]int32{"a": 1, "b": 1})
		expect(t, changes, true, "a", "b")
		r.set(map[string]int32{"a": 1, "b": 2, "c": 1})
		expect(t, changes, false, "b", "c")
		r.set(map[string]int32{"b": 2, "c": 1})
		expect(t, changes, false, "a")
		select {
		case c := <-changes:
			t.Errorf("nothing has changed, and yet %v", c)
		case <-time.After(time.Minute):
		}
	})
}

// A runtime that does not answer changes no pod; its return is reported.
func TestAwayAndBack(t *testing.T) {
	bubble(t, func(t *testing.T, r *runtime, changes chan criruntime.Change) {
		r.set(map[string]int32{"a": 1})
		expect(t, changes, true, "a")
		r.set(nil)
		select {
		case c := <-changes:
			t.Errorf("the runtime is away, and yet %v", c)
		case <-time.After(time.Hour):
		}
		r.set(map[string]int32{"a": 1})
		expect(t, changes, true)
	})
}

// An event causes a relist at once, and many events cause only one.
func TestHint(t *testing.T) {
	bubble(t, func(t *testing.T, r *runtime, changes chan criruntime.Change) {
		r.set(map[string]int32{"a": 1})
		expect(t, changes, true, "a")
		begin, lists := time.Now(), r.lists
		r.set(map[string]int32{"a": 2})
		for range 10 {
			r.events <- &cri.ContainerEventResponse{}
		}
		expect(t, changes, false, "a")
		if took := time.Since(begin); took > 100*time.Millisecond { // the rest of the 1.5 s is for a busy runtime and the start
			t.Errorf("noticed after %v of fake time", took)
		}
		if r.lists != lists+1 {
			t.Errorf("%d relists for ten events at once", r.lists-lists)
		}
	})
}

// A runtime without the event stream is asked for it with growing intervals. Changes are still
// noticed after at most one period, also if the stream exists but is silent.
func TestNoStream(t *testing.T) {
	for _, silent := range []bool{false, true} {
		bubble(t, func(t *testing.T, r *runtime, changes chan criruntime.Change) {
			if !silent {
				close(r.events)
			}
			r.set(map[string]int32{"a": 1})
			expect(t, changes, true, "a")
			for state := int32(2); state < 100; state++ {
				time.Sleep(time.Duration(state) * 77 * time.Millisecond) // at different moments of a period
				begin := time.Now()
				r.set(map[string]int32{"a": state})
				expect(t, changes, false, "a")
				if took := time.Since(begin); took > 2*time.Second {
					t.Errorf("silent %v: noticed after %v of fake time", silent, took)
				}
			}
		})
	}
}

// A runtime that answers but does not list its pods is unhealthy after three minutes, and
// healthy as soon as it lists them again.
func TestListsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := &hanging{runtime: &runtime{states: map[string]int32{}, events: make(chan *cri.ContainerEventResponse)}, locked: make(chan struct{})}
		g := criruntime.NewPLEG(r, slog.New(slog.DiscardHandler))
		if err := g.Health(); err != nil {
			t.Errorf("before it has begun: %v", err)
		}
		changes := make(chan criruntime.Change, 100)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			g.Run(ctx, changes)
		}()
		time.Sleep(3 * time.Minute)
		if err := g.Health(); err != nil {
			t.Errorf("within three minutes: %v", err)
		}
		time.Sleep(2 * time.Second)
		if g.Health() == nil {
			t.Error("well without a list for more than three minutes")
		}
		close(r.locked)
		time.Sleep(time.Minute)
		if err := g.Health(); err != nil {
			t.Errorf("with lists again: %v", err)
		}
		cancel()
		<-ended
	})
}

// A hanging runtime lists nothing until locked is closed.
type hanging struct {
	*runtime
	locked chan struct{}
}

func (h *hanging) States(ctx context.Context) (map[podsync.Key]criruntime.States, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute) // that of the calls
	defer cancel()
	select {
	case <-h.locked:
		return h.runtime.States(ctx)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
