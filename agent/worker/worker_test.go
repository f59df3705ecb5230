package worker_test

import (
	"context"
	"fmt"
	"log/slog"
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
	"k8s.io/apimachinery/pkg/types"
)

var key = podsync.Key{Namespace: "default", Name: "web"}

func pod(uid string) *v1.Pod {
	p := &v1.Pod{}
	p.Namespace, p.Name, p.UID = key.Namespace, key.Name, types.UID(uid)
	p.Spec.RestartPolicy = v1.RestartPolicyAlways
	p.Spec.Containers = []v1.Container{{Name: "app"}}
	return p
}

type actFunc func(ctx, interrupt context.Context, a podsync.Action) error

// A world is a runtime in memory. Actions succeed at once unless act decides otherwise. Its log has
// a line for each action, with the seconds since the start.
type world struct {
	mu     sync.Mutex
	act    actFunc // may be nil
	begun  time.Time
	have   podsync.Have
	status *v1.PodStatus // what Report returns
	down   bool
	idle   bool // actions have no effect
	log    []string
	ended  []string // arguments of calls of Ended
}

func (w *world) Observe(context.Context, podsync.Key, *v1.Pod) (podsync.Have, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return podsync.Have{}, fault.Unavailable.Errorf("runtime is down")
	}
	return podsync.Have{
		Sandboxes:  slices.Clone(w.have.Sandboxes),
		Containers: slices.Clone(w.have.Containers),
		Files:      slices.Clone(w.have.Files),
	}, nil
}

func (w *world) Report(*v1.Pod, podsync.Have) *v1.PodStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

func (w *world) setStatus(s *v1.PodStatus) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status = s
}

func (w *world) Ended(key podsync.Key, uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = append(w.ended, fmt.Sprintf("%v %s", key, uid))
}

func (w *world) Stop(ctx context.Context, turn <-chan struct{}, pod *v1.Pod, a podsync.Action) error {
	<-turn
	return w.Act(ctx, ctx, pod, a)
}

func (w *world) Act(ctx, interrupt context.Context, _ *v1.Pod, a podsync.Action) error {
	if act := w.note(a); act != nil {
		if err := act(ctx, interrupt, a); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	h := &w.have
	if w.idle {
		return nil
	}
	switch a.Verb {
	case podsync.RunSandbox:
		h.Sandboxes = append([]podsync.Sandbox{{ID: fmt.Sprintf("%s/%d", a.UID, a.Attempt), UID: a.UID, Attempt: a.Attempt, Ready: true, IPs: []string{"10.0.0.1"}}}, h.Sandboxes...)
		h.Files = append(h.Files, a.UID)
	case podsync.StartContainer:
		id := fmt.Sprintf("%s-%d", a.UID, a.Attempt)
		h.Containers = append([]podsync.Container{{
			ID: id, UID: a.UID, SandboxID: a.SandboxID, Name: a.Name, Attempt: a.Attempt,
			State: podsync.Running, StartedAt: time.Now(), Backoff: a.Backoff,
		}}, h.Containers...)
	case podsync.StopContainer:
		w.exitLocked(a.ID)
	case podsync.RemoveContainer:
		h.Containers = slices.DeleteFunc(h.Containers, func(c podsync.Container) bool { return c.ID == a.ID })
	case podsync.StopSandbox:
		for i := range h.Sandboxes {
			h.Sandboxes[i].Ready = h.Sandboxes[i].Ready && h.Sandboxes[i].ID != a.ID
		}
	case podsync.RemoveSandbox:
		h.Sandboxes = slices.DeleteFunc(h.Sandboxes, func(sb podsync.Sandbox) bool { return sb.ID == a.ID })
	case podsync.ForgetFiles:
		h.Files = slices.DeleteFunc(h.Files, func(uid string) bool { return uid == a.UID })
	}
	return nil
}

func (w *world) note(a podsync.Action) actFunc {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf("%d %s %s", int(time.Since(w.begun).Seconds()), a.Verb, a.UID))
	return w.act
}

// begin resets the clock of the log.
func (w *world) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = time.Now()
}

// setAct sets the function that decides the results of actions.
func (w *world) setAct(act actFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.act = act
}

// exit ends the running container as if it had exited.
func (w *world) exit() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.have.Containers {
		if c.State == podsync.Running {
			w.exitLocked(c.ID)
		}
	}
}

func (w *world) exitLocked(id string) {
	for i := range w.have.Containers {
		if c := &w.have.Containers[i]; c.ID == id {
			c.State, c.ExitCode, c.FinishedAt = podsync.Exited, 1, time.Now()
		}
	}
}

func (w *world) setDown(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
}

// lines returns the log since the last call.
func (w *world) lines() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := strings.Join(w.log, "\n")
	w.log = nil
	return text
}

func (w *world) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := w.lines(); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// bubble runs f in fake time with a Pool over a new world.
func bubble(t *testing.T, f func(t *testing.T, w *world, p *worker.Pool)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := &world{begun: time.Now()}
		p := worker.NewPool(ctx, w, discard())
		f(t, w, p)
		cancel()
		p.Wait()
	})
}

// A container that exits is restarted: at once, then after 10 s, doubled up to 300 s.
func TestRestartsBackOff(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, p *worker.Pool) {
		p.Set(key, pod("u"))
		w.expect(t, "0 run sandbox u", "0 start container u")
		for i, wait := range append([]int{0, 10, 20, 40, 80, 160}, slices.Repeat([]int{300}, 15)...) {
			w.begin()
			w.exit()
			p.Wake(key)
			time.Sleep(400 * time.Second)
			lines := []string{fmt.Sprintf("%d start container u", wait)}
			if i > 0 { // the last two are kept
				lines = append(lines, fmt.Sprintf("%d remove container u", wait))
			}
			w.expect(t, lines...)
			if h, err := w.Observe(t.Context(), key, nil); err != nil || len(h.Containers) != 2 {
				t.Fatalf("after %d restarts there are %d runs, %v", i+1, len(h.Containers), err)
			}
		}
	})
}

// An edited pod starts only when the old one has ended.
func TestReplaced(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, p *worker.Pool) {
		p.Set(key, pod("a"))
		synctest.Wait()
		w.setAct(func(_, _ context.Context, a podsync.Action) error {
			if a.Verb == podsync.StopContainer {
				time.Sleep(7 * time.Second) // the grace period
			}
			return nil
		})
		w.lines()
		p.Set(key, pod("b"))
		time.Sleep(time.Minute)
		w.expect(t, "0 stop container a", "7 stop sandbox a", "7 remove container a", "7 forget files a", "7 remove sandbox a",
			"7 run sandbox b", "7 start container b")
	})
}

// A hanging pull does not delay the end of the pod.
func TestRemovedWhilePulling(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, p *worker.Pool) {
		w.setAct(func(ctx, interrupt context.Context, a podsync.Action) error {
			if a.Verb == podsync.StartContainer {
				<-interrupt.Done()
				return interrupt.Err()
			}
			return nil
		})
		p.Set(key, pod("u"))
		w.expect(t, "0 run sandbox u", "0 start container u")
		p.Set(key, nil)
		w.expect(t, "0 stop sandbox u", "0 forget files u", "0 remove sandbox u")
		if p.Wake(key) {
			t.Error("the worker of a pod that is gone lives")
		}
	})
}

// The runtime may be down for any time: nothing is done meanwhile, and it does not count as a
// failure of the pod.
func TestRuntimeAway(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, p *worker.Pool) {
		w.setDown(true)
		p.Set(key, pod("u"))
		time.Sleep(time.Hour + 500*time.Millisecond)
		w.expect(t, "")
		w.setDown(false)
		time.Sleep(2 * time.Second)
		w.expect(t, "3601 run sandbox u", "3601 start container u")

		w.setAct(func(context.Context, context.Context, podsync.Action) error {
			return fault.Unavailable.Errorf("gone again")
		})
		w.exit()
		p.Wake(key)
		time.Sleep(10*time.Minute + 500*time.Millisecond) // between two attempts
		w.setAct(nil)
		w.lines()
		time.Sleep(2 * time.Second)
		if got := w.lines(); !strings.Contains(got, "start container") {
			t.Errorf("the pod was held back for the runtime's absence: %q", got)
		}
	})
}

// An image that cannot be pulled is retried after 10 s, doubled up to 300 s. Another pod of the
// same name starts without back-off.
func TestFailuresBackOff(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, p *worker.Pool) {
		w.setAct(func(_, _ context.Context, a podsync.Action) error {
			if a.Verb == podsync.StartContainer && a.UID == "u" {
				return pullError{}
			}
			return nil
		})
		p.Set(key, pod("u"))
		time.Sleep(18 * time.Minute)
		w.expect(t, "0 run sandbox u", "0 start container u", "10 start container u", "30 start container u", "70 start container u",
			"150 start container u", "310 start container u", "610 start container u", "910 start container u")
		w.begin()
		p.Set(key, pod("v"))
		w.expect(t, "0 stop sandbox u", "0 forget files u", "0 remove sandbox u", "0 run sandbox v", "0 start container v")
	})
}

// edited returns the pod with another image.
func edited(uid, image string) *v1.Pod {
	p := pod(uid)
	p.Spec.Containers[0].Image = image
	return p
}

// After a correction of a pod's image neither a hanging pull of the former image nor its back-off
// delays the pod. A pull of an image that is still wanted continues.
func TestImageEditedWhilePulling(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, p *worker.Pool) {
		w.setAct(func(ctx, interrupt context.Context, a podsync.Action) error {
			if a.Verb == podsync.StartContainer {
				<-interrupt.Done()
				return interrupt.Err()
			}
			return nil
		})
		p.Set(key, edited("u", "i:1"))
		w.expect(t, "0 run sandbox u", "0 start container u")
		labelled := edited("u", "i:1")
		labelled.Labels = map[string]string{"a": "b"}
		p.Set(key, labelled)
		time.Sleep(time.Hour)
		w.expect(t)
		w.begin()
		w.setAct(func(_, _ context.Context, a podsync.Action) error { return pullError{} })
		p.Set(key, edited("u", "i:2"))
		w.expect(t, "0 start container u")
		time.Sleep(1500 * time.Millisecond)
		w.setAct(nil)
		p.Set(key, edited("u", "i:3"))
		w.expect(t, "1 start container u")
		p.Set(key, edited("u", "i:4")) // nothing is being pulled
		time.Sleep(time.Minute)
		w.expect(t)
	})
}

type pullError struct{}

func (pullError) Error() string  { return "no such image" }
func (pullError) Reason() string { return "ErrImagePull" }

// A slow world takes a while to make a status.
type slow struct {
	*world
	last time.Time // when it began to; guarded by mu
}

func (s *slow) Report(*v1.Pod, podsync.Have) *v1.PodStatus {
	s.mu.Lock()
	s.last = time.Now()
	s.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
	return nil
}

// A status that is being made when ErrImagePull becomes ImagePullBackOff is made again.
func TestPullBackoffIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan time.Time, 1)
		s := &slow{world: &world{begun: time.Now(), act: func(_, _ context.Context, a podsync.Action) error {
			if a.Verb != podsync.StartContainer {
				return nil
			}
			failed <- time.Now()
			return pullError{}
		}}}
		p := worker.NewPool(ctx, s, discard())
		p.Set(key, pod("u"))
		backoff := (<-failed).Add(podsync.PullErrorShown)
		time.Sleep(time.Until(backoff) - 5*time.Millisecond)
		p.Wake(key)
		time.Sleep(time.Second)
		s.mu.Lock()
		if s.last.Before(backoff) {
			t.Errorf("the last status was made %v before the back-off was to be shown", backoff.Sub(s.last))
		}
		s.mu.Unlock()
		cancel()
		p.Wait()
	})
}

// A runtime that reports success and does nothing is not called without a pause.
func TestActionsWithoutEffectPause(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, p *worker.Pool) {
		w.idle = true
		p.Set(key, pod("u"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(strings.Split(w.lines(), "\n")); n < 30 || n > 61 {
			t.Errorf("%d actions in a minute", n)
		}
		w.mu.Lock()
		w.idle = false
		w.mu.Unlock()
	})
}

// Containers end side by side: a pod takes its longest grace period, not the sum.
func TestContainersStopTogether(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, p *worker.Pool) {
		u := pod("u")
		w.have.Sandboxes = []podsync.Sandbox{{ID: "s", UID: "u", Ready: true}}
		for _, id := range []string{"a", "b", "c"} {
			w.have.Containers = append(w.have.Containers, podsync.Container{ID: id, UID: "u", Name: id, SandboxID: "s", State: podsync.Running})
		}
		w.setAct(func(_, _ context.Context, a podsync.Action) error {
			if a.Verb == podsync.StopContainer {
				time.Sleep(30 * time.Second)
			}
			return nil
		})
		p.Set(key, u)
		synctest.Wait()
		p.Set(key, nil)
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if p.Wake(key) {
			t.Errorf("the pod is not gone after its longest grace period:\n%s", w.lines())
		}
	})
}

// A pod that comes back while its worker is about to exit is not lost.
func TestComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, p *worker.Pool) {
		for range 100 {
			p.Set(key, pod("u"))
			p.Set(key, nil)
			p.Set(key, pod("u"))
			synctest.Wait()
			h, err := w.Observe(t.Context(), key, nil)
			if err != nil || len(h.Containers) != 1 || h.Containers[0].State != podsync.Running {
				t.Fatalf("pod does not run: %+v, %v", h, err)
			}
			p.Set(key, nil)
			synctest.Wait()
		}
	})
}

// A database that is restarted on request runs its preStop hook, has the ten minutes of its pod's
// grace period, and starts again at once.
func TestRestartOnRequest(t *testing.T) {
	for name, test := range map[string]struct {
		asked *time.Duration
		want  time.Duration
	}{
		"the pod's grace period": {nil, 10 * time.Minute},
		"one that was given":     {new(3 * time.Second), 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var graces []time.Duration
				w := &world{act: func(_, _ context.Context, a podsync.Action) error {
					if a.Verb == podsync.StopContainer {
						graces = append(graces, a.Grace)
					}
					return nil
				}}
				w.begin()
				ctx, cancel := context.WithCancel(t.Context())
				pool := worker.NewPool(ctx, w, slog.New(slog.DiscardHandler))
				web := pod("a")
				web.Spec.TerminationGracePeriodSeconds = new(int64(600))
				pool.Set(key, web)
				synctest.Wait()
				if pool.Restart(key, "other", []string{"a-0"}, nil) {
					t.Error("containers of another pod are restarted")
				}
				if !pool.Restart(key, "a", []string{"a-0"}, test.asked) {
					t.Error("the pod is not there")
				}
				synctest.Wait()
				if !slices.Equal(graces, []time.Duration{test.want}) {
					t.Errorf("stopped within %v, want %v, once", graces, test.want)
				}
				w.expect(t, "0 run sandbox a", "0 start container a", "0 stop container a", "0 start container a")
				cancel()
				pool.Wait()
			})
		})
	}
}

// A deadline that passes while the machine is suspended, or because the clock is set forward, is
// noticed soon after, although timers do not fire.
func TestDeadlineAfterSleep(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, p *worker.Pool) {
		long := pod("u")
		long.Spec.ActiveDeadlineSeconds = new(int64(3600))
		w.setStatus(&v1.PodStatus{Phase: v1.PodRunning, StartTime: &metav1.Time{Time: time.Now()}})
		p.Set(key, long)
		w.expect(t, "0 run sandbox u", "0 start container u")
		w.setStatus(&v1.PodStatus{Phase: v1.PodFailed, Reason: "DeadlineExceeded"}) // as it is by the new clock
		time.Sleep(time.Minute)
		w.expect(t, "60 stop container u", "60 stop sandbox u")
	})
}
