package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/worker"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// stopping makes containers end after their grace period, or at once if the stop is cut short.
func (w *world) stopping() {
	w.setAct(func(ctx, _ context.Context, a podsync.Action) error {
		if a.Verb != podsync.StopContainer {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(a.Grace):
			return nil
		}
	})
}

// deleted returns the pod u, with a deletion grace period in seconds.
func deleted(grace int64) *v1.Pod {
	p := pod("u")
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{}, &grace
	return p
}

// A repeated deletion with a shorter grace period shortens the first one, and the end is published
// once.
func TestDeletedInAHurry(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, p *worker.Pool) {
		p.Set(key, pod("u"))
		synctest.Wait()
		w.stopping()
		w.lines()
		w.begin()
		p.Set(key, deleted(30))
		time.Sleep(5 * time.Second)
		p.Set(key, deleted(1))
		time.Sleep(time.Minute)
		w.expect(t, "0 stop container u", "5 stop container u", "6 stop sandbox u", "6 remove container u", "6 forget files u", "6 remove sandbox u")
		if !slices.Equal(w.ended, []string{"default/web u"}) {
			t.Errorf("got %q", w.ended)
		}
		p.Set(key, nil)
		w.expect(t, "")
	})
}

// A longer grace period does not affect a container that is already being stopped.
func TestDeletedAtLeisure(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, p *worker.Pool) {
		p.Set(key, pod("u"))
		synctest.Wait()
		w.stopping()
		w.lines()
		w.begin()
		p.Set(key, deleted(10))
		time.Sleep(5 * time.Second)
		p.Set(key, deleted(30))
		time.Sleep(time.Minute)
		w.expect(t, "0 stop container u", "10 stop sandbox u", "10 remove container u", "10 forget files u", "10 remove sandbox u")
	})
}

// failing is a world whose statuses are Failed as soon as there is a verdict.
type failing struct {
	*world
	mu       sync.Mutex
	verdicts []string
}

func (f *failing) Report(pod *v1.Pod, have podsync.Have) *v1.PodStatus {
	if have.Verdict == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.verdicts = append(f.verdicts, have.Verdict.Reason)
	return &v1.PodStatus{Phase: v1.PodFailed}
}

// A pod with a verdict is stopped and not started again; its containers stay for inspection.
func TestFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f := &failing{world: &world{begun: time.Now()}}
		p := worker.NewPool(ctx, f, discard())
		p.Set(key, pod("u"))
		synctest.Wait()
		f.lines()
		if p.Fail(key, "other", podsync.Verdict{Reason: "Evicted"}) {
			t.Error("a pod that is not there can fail")
		}
		if !p.Fail(key, "u", podsync.Verdict{Reason: "Evicted"}) {
			t.Error("the pod cannot fail")
		}
		time.Sleep(time.Hour)
		f.expect(t, "0 stop container u", "0 stop sandbox u")
		if len(f.verdicts) == 0 {
			t.Error("the status was not reported")
		}
		// Another pod of the same name is not affected.
		p.Set(key, pod("v"))
		time.Sleep(time.Minute)
		if got := f.lines(); !strings.Contains(got, "start container v") {
			t.Errorf("got\n%s", got)
		}
		cancel()
		p.Wait()
	})
}

// An action that failed because of a missing object is retried as soon as the object exists. A
// failed pull still backs off.
func TestAgain(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, p *worker.Pool) {
		err := errors.New("no such config map")
		w.setAct(func(_, _ context.Context, a podsync.Action) error {
			if a.Verb == podsync.StartContainer {
				return err
			}
			return nil
		})
		p.Set(key, pod("u"))
		w.expect(t, "0 run sandbox u", "0 start container u")
		time.Sleep(3 * time.Second)
		p.Again(key)
		w.expect(t, "3 start container u")
		err = pullError{}
		time.Sleep(3 * time.Second)
		p.Again(key)
		w.expect(t, "6 start container u")
		p.Again(key)
		time.Sleep(5 * time.Second)
		w.expect(t, "")
	})
}

// Actions that wait for the network are retried each second; those that fail because of the pod,
// every ten to fifteen seconds.
func TestRetries(t *testing.T) {
	for _, test := range []struct {
		name     string
		err      error
		min, max int // number of attempts within 60 s
	}{
		{"network", notReady{}, 60, 61},
		{"runtime away", fault.Unavailable.Errorf("away"), 60, 61},
		{"config", errors.New("bad"), 5, 7},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world, p *worker.Pool) {
				w.setAct(func(context.Context, context.Context, podsync.Action) error { return test.err })
				p.Set(key, pod("u"))
				time.Sleep(60*time.Second + time.Millisecond)
				if n := strings.Count(w.lines(), "run sandbox"); n < test.min || n > test.max {
					t.Errorf("%d tries, want %d to %d", n, test.min, test.max)
				}
			})
		})
	}
}

type notReady struct{}

func (notReady) Error() string  { return "no network" }
func (notReady) Reason() string { return "NetworkNotReady" }

// A sidecar is stopped after the containers that it serves have ended.
func TestTurns(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, p *worker.Pool) {
		u := pod("u")
		u.Spec.InitContainers = []v1.Container{{Name: "side", RestartPolicy: new(v1.ContainerRestartPolicyAlways)}}
		w.have.Sandboxes = []podsync.Sandbox{{ID: "s", UID: "u", Ready: true, IPs: []string{"10.0.0.1"}}}
		for _, name := range []string{"app", "side"} {
			w.have.Containers = append(w.have.Containers, podsync.Container{ID: name, UID: "u", Name: name, SandboxID: "s", State: podsync.Running})
		}
		p.Set(key, u)
		synctest.Wait()
		w.setAct(func(_, _ context.Context, a podsync.Action) error {
			if a.Verb == podsync.StopContainer {
				time.Sleep(4 * time.Second)
			}
			return nil
		})
		w.lines()
		w.begin()
		gone := u.DeepCopy()
		gone.DeletionTimestamp = &metav1.Time{}
		p.Set(key, gone)
		time.Sleep(time.Minute)
		w.expect(t, "0 stop container u", "4 stop container u", "8 stop sandbox u", "8 remove container u", "8 remove container u", "8 remove sandbox u")
	})
}

// Pods do not wait for each other.
func TestManyPods(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, p *worker.Pool) {
		w.setAct(func(context.Context, context.Context, podsync.Action) error {
			time.Sleep(10 * time.Second)
			return nil
		})
		for i := range 50 {
			u := pod(fmt.Sprint("u", i))
			p.Set(podsync.Key{Namespace: "default", Name: fmt.Sprint("web", i)}, u)
		}
		time.Sleep(11 * time.Second)
		if n := strings.Count(w.lines(), "run sandbox"); n != 50 {
			t.Errorf("%d of 50 pods began", n)
		}
	})
}

// A foreignContext is a context implementation that package context does not know: each context
// derived from it costs a goroutine until it is cancelled.
type foreignContext struct {
	context.Context
	done chan struct{}
}

func (c foreignContext) Done() <-chan struct{} { return c.done }

// The context of all workers lives as long as the agent. Contexts derived from it for a pod must be
// cancelled with the pod.
func TestNothingIsLeftOfAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{begun: time.Now()}
		p := worker.NewPool(foreignContext{t.Context(), make(chan struct{})}, w, discard())
		p.Set(key, pod("u"))
		synctest.Wait()
		p.Set(key, nil)
		time.Sleep(time.Minute)
		if p.Wake(key) {
			t.Error("the worker of a pod that is gone lives")
		}
		p.Wait()
		// The bubble's end fails the test if a goroutine is left.
	})
}
