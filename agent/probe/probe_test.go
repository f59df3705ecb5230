package probe_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/probe"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A lab is a pod with one container and its probes, under fake time. Its log has a line for each
// changed result and each event, with the seconds since its start.
type lab struct {
	t     *testing.T
	m     *probe.Manager
	pod   *v1.Pod
	begun time.Time

	mu     sync.Mutex
	status *v1.PodStatus
	answer func(kind string) (bool, error)
	log    []string
	found  probe.Results
}

// have has all containers of the tests.
var have = podsync.Have{Containers: []podsync.Container{{ID: "1", UID: "u"}, {ID: "2", UID: "u"}}}

func (l *lab) Get(types.UID) *v1.PodStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

func (l *lab) Probed(_ podsync.Key, k probe.Kind) {
	l.say("%s %v %v", k, l.results("1"), l.results("2"))
}

func (l *lab) say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log = append(l.log, fmt.Sprintf("%d ", int(time.Since(l.begun).Seconds()))+fmt.Sprintf(format, args...))
}

func (l *lab) Ask(_ context.Context, _ *v1.Pod, _ *v1.PodStatus, _ *v1.Container, _ string, p *v1.Probe) (probe.Answer, error) {
	l.mu.Lock()
	answer := l.answer
	l.mu.Unlock()
	ok, err := answer(p.Exec.Command[0])
	return probe.Answer{OK: ok, Text: "no"}, err
}

func (l *lab) Event(_ v1.ObjectReference, _, reason, message string) {
	l.say("%s: %s", reason, message)
}

// run starts a container.
func (l *lab) run(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	started := l.pod.Spec.Containers[0].StartupProbe == nil
	l.status = &v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{{
		Name: "app", ContainerID: "crisp://" + id, Started: &started,
		State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}}
}

func (l *lab) edit(f func(*v1.ContainerStatus)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.status.DeepCopy()
	f(&s.ContainerStatuses[0])
	l.status = s
}

func (l *lab) set(answer func(kind string) (bool, error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answer = answer
}

func (l *lab) results(id string) podsync.Probes {
	return l.found.Of(l.pod, have)[id]
}

func (l *lab) expect(want ...string) {
	l.t.Helper()
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if got, want := strings.Join(l.log, "\n"), strings.Join(want, "\n"); got != want {
		l.t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	l.log = nil
}

func spec(kind string, edit func(*v1.Probe)) *v1.Probe {
	p := &v1.Probe{PeriodSeconds: 10, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3}
	p.Exec = &v1.ExecAction{Command: []string{kind}}
	if edit != nil {
		edit(p)
	}
	return p
}

// bubble runs f under fake time, one hour after the agent started.
func bubble(t *testing.T, c v1.Container, f func(*lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := &lab{t: t, pod: &v1.Pod{}, answer: func(string) (bool, error) { return true, nil }}
		c.Name = "app"
		l.pod.Namespace, l.pod.Name, l.pod.UID = "default", "web", "u"
		l.pod.Spec.Containers = []v1.Container{c}
		l.m = probe.New(ctx, probe.Options{Ask: l, Statuses: l, Results: &l.found, Events: l})
		time.Sleep(time.Hour)
		l.begun = time.Now()
		f(l)
		cancel()
		l.m.Wait()
	})
}

func failing(string) (bool, error) { return false, nil }

// A container is dead after as many bad answers in a row as the threshold. The probe then rests
// until there is a new container.
func TestLiveness(t *testing.T) {
	bubble(t, v1.Container{LivenessProbe: spec("live", func(p *v1.Probe) { p.InitialDelaySeconds = 15 })}, func(l *lab) {
		l.run("1")
		l.set(failing)
		l.m.Add(l.pod, l)
		l.expect("0 Liveness {0 1 0} {0 0 0}")
		time.Sleep(5 * time.Minute)
		l.expect("20 Unhealthy: Liveness probe failed: no", "30 Unhealthy: Liveness probe failed: no", "40 Unhealthy: Liveness probe failed: no",
			"40 Liveness {0 2 0} {0 0 0}")
		l.run("2")
		l.set(func(string) (bool, error) { return true, nil })
		time.Sleep(time.Minute)
		l.expect("310 Liveness {0 0 0} {0 1 0}")
	})
}

// Only consecutive bad answers count. An attempt without an answer does not count.
func TestThreshold(t *testing.T) {
	bubble(t, v1.Container{LivenessProbe: spec("live", nil)}, func(l *lab) {
		n := 0
		l.set(func(string) (bool, error) {
			n++
			return n%3 == 0, nil
		})
		l.run("1")
		l.m.Add(l.pod, l)
		time.Sleep(10 * time.Minute)
		if r := l.results("1"); r.Liveness != podsync.Success {
			t.Errorf("two bad answers of three: %v", r)
		}
		l.set(func(string) (bool, error) { return false, errors.New("no such container") })
		time.Sleep(10 * time.Minute)
		if r := l.results("1"); r.Liveness != podsync.Success {
			t.Errorf("no answers at all: %v", r)
		}
	})
}

// A container starts unready and becomes ready after as many good answers as the threshold. It may
// become unready again; the probe asks as long as the container runs.
func TestReadiness(t *testing.T) {
	bubble(t, v1.Container{ReadinessProbe: spec("ready", func(p *v1.Probe) { p.SuccessThreshold, p.PeriodSeconds = 2, 5 })}, func(l *lab) {
		l.run("1")
		l.m.Add(l.pod, l)
		time.Sleep(time.Minute + time.Second)
		l.expect("0 Readiness {0 0 2} {0 0 0}", "5 Readiness {0 0 1} {0 0 0}")
		l.set(failing)
		time.Sleep(20 * time.Second)
		l.expect("65 Unhealthy: Readiness probe failed: no", "70 Unhealthy: Readiness probe failed: no", "75 Unhealthy: Readiness probe failed: no",
			"75 Readiness {0 0 2} {0 0 0}", "80 Unhealthy: Readiness probe failed: no")
		// An ended container is unready, whatever it answered.
		l.edit(func(c *v1.ContainerStatus) { c.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}} })
		time.Sleep(time.Minute)
		l.expect()
	})
}

// The other probes wait for the startup probe, which stops asking once it has succeeded.
func TestStartup(t *testing.T) {
	bubble(t, v1.Container{StartupProbe: spec("start", nil), LivenessProbe: spec("live", nil), ReadinessProbe: spec("ready", nil)}, func(l *lab) {
		var mu sync.Mutex
		asked := map[string]int{} // guarded by mu: probes ask at the same time
		count := func(kind string) int {
			mu.Lock()
			defer mu.Unlock()
			return asked[kind]
		}
		l.set(func(kind string) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			asked[kind]++
			return asked["start"] > 2, nil
		})
		l.run("1")
		l.m.Add(l.pod, l)
		time.Sleep(15 * time.Second)
		if live, ready := count("live"), count("ready"); live+ready > 0 {
			t.Errorf("asked before it had started: %d and %d times", live, ready)
		}
		time.Sleep(10 * time.Second)
		if r := l.results("1"); r.Startup != podsync.Success {
			t.Errorf("it has not started: %v", r)
		}
		l.edit(func(c *v1.ContainerStatus) { c.Started = new(true) })
		time.Sleep(time.Minute)
		if start, live, ready := count("start"), count("live"), count("ready"); start != 3 || live != 6 || ready != 6 {
			t.Errorf("asked %d, %d and %d times", start, live, ready)
		}
	})
}

// The startup probe of a container that does not start in time fails.
func TestStartupFails(t *testing.T) {
	bubble(t, v1.Container{StartupProbe: spec("start", func(p *v1.Probe) { p.FailureThreshold = 2 })}, func(l *lab) {
		l.set(failing)
		l.run("1")
		l.m.Add(l.pod, l)
		time.Sleep(time.Hour)
		l.expect("0 Unhealthy: Startup probe failed: no", "10 Unhealthy: Startup probe failed: no", "10 Startup {2 0 0} {0 0 0}")
	})
}

// A container that ran before the agent keeps its status.
func TestFoundRunning(t *testing.T) {
	bubble(t, v1.Container{ReadinessProbe: spec("ready", nil), LivenessProbe: spec("live", nil)}, func(l *lab) {
		l.run("1")
		l.edit(func(c *v1.ContainerStatus) { c.State.Running.StartedAt = metav1.NewTime(l.begun.Add(-2 * time.Hour)) })
		l.set(failing)
		l.m.Add(l.pod, l)
		time.Sleep(15 * time.Second)
		if r := l.results("1"); r.Readiness != podsync.Unknowable || r.Liveness != podsync.Unknowable {
			t.Errorf("after 2 bad answers: %v", r)
		}
		time.Sleep(10 * time.Second)
		if r := l.results("1"); r.Readiness != podsync.Failing || r.Liveness != podsync.Failing {
			t.Errorf("after 3 bad answers: %v", r)
		}
	})
}

// A clock that was set back after the start of a container neither blocks a probe nor makes it ask
// too early.
func TestClockSetBack(t *testing.T) {
	for _, delay := range []int32{0, 25} {
		bubble(t, v1.Container{ReadinessProbe: spec("ready", func(p *v1.Probe) { p.InitialDelaySeconds = delay })}, func(l *lab) {
			l.run("1")
			l.edit(func(c *v1.ContainerStatus) { c.State.Running.StartedAt = metav1.NewTime(l.begun.Add(2 * time.Hour)) })
			l.m.Add(l.pod, l)
			time.Sleep(19 * time.Second)
			if r := l.results("1"); (r.Readiness == podsync.Success) != (delay == 0) {
				t.Errorf("with a delay of %d s, after 19 s: %v", delay, r)
			}
			time.Sleep(12 * time.Second)
			if r := l.results("1"); r.Readiness != podsync.Success {
				t.Errorf("with a delay of %d s, after 31 s: %v", delay, r)
			}
		})
	}
}

// A container that an earlier agent found ready stays ready, however recently it started. Otherwise
// a running update would remove its pod first.
func TestFoundReady(t *testing.T) {
	bubble(t, v1.Container{ReadinessProbe: spec("ready", nil)}, func(l *lab) {
		l.run("1")
		l.edit(func(c *v1.ContainerStatus) { c.Ready = true })
		l.set(failing)
		l.m.Add(l.pod, l)
		time.Sleep(15 * time.Second)
		if r := l.results("1"); r.Readiness != podsync.Unknowable {
			t.Errorf("after 2 bad answers: %v", r)
		}
		time.Sleep(10 * time.Second)
		if r := l.results("1"); r.Readiness != podsync.Failing {
			t.Errorf("after 3 bad answers: %v", r)
		}
		// Its successor has not answered yet.
		l.run("2")
		l.edit(func(c *v1.ContainerStatus) { c.Ready = true })
		time.Sleep(10 * time.Second)
		if r := l.results("2"); r.Readiness != podsync.Failing {
			t.Errorf("its successor: %v", r)
		}
	})
}

// Answers are counted by result while the probe exists.
func TestMetrics(t *testing.T) {
	bubble(t, v1.Container{ReadinessProbe: spec("ready", nil)}, func(l *lab) {
		n := 0
		l.set(func(string) (bool, error) {
			n++
			if n > 6 {
				return false, errors.New("not asked")
			}
			return n > 2, nil
		})
		l.run("1")
		l.m.Add(l.pod, l)
		time.Sleep(65 * time.Second)
		line := func(result string, count int) string {
			return fmt.Sprintf("prober_probe_total{container=\"app\",namespace=\"default\",pod=\"web\",pod_uid=\"u\",probe_type=\"Readiness\",result=\"%s\"} %d\n", result, count)
		}
		if got, want := l.counts(), line("failed", 2)+line("successful", 4)+line("unknown", 1); !strings.HasSuffix(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
		l.m.Remove("u")
		l.m.Wait()
		if left := l.counts(); left != "" {
			t.Errorf("left %s", left)
		}
	})
}

// counts returns what is counted, in Prometheus' text format.
func (l *lab) counts() string {
	w := httptest.NewRecorder()
	promhttp.HandlerFor(l.m.Counts, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	return w.Body.String()
}

// A pod's probes end with it, and its results are forgotten.
func TestRemove(t *testing.T) {
	bubble(t, v1.Container{ReadinessProbe: spec("ready", nil), LivenessProbe: spec("live", nil)}, func(l *lab) {
		l.run("1")
		l.m.Add(l.pod, l)
		time.Sleep(time.Minute)
		l.m.Remove("u", probe.Liveness)
		synctest.Wait()
		if r := l.results("1"); r.Liveness != podsync.Unknowable || r.Readiness != podsync.Success {
			t.Errorf("without liveness: %v", r)
		}
		l.m.Remove("u")
		l.m.Wait()
		if r := l.found.Of(l.pod, have); len(r) > 0 {
			t.Errorf("results are left: %v", r)
		}
	})
}

// Concurrent calls of AskNow make the probe ask once.
func TestAskNow(t *testing.T) {
	bubble(t, v1.Container{ReadinessProbe: spec("ready", func(p *v1.Probe) { p.PeriodSeconds = 100 })}, func(l *lab) {
		l.set(failing)
		l.run("1")
		l.m.Add(l.pod, l)
		synctest.Wait()
		l.set(func(string) (bool, error) { return true, nil })
		l.m.AskNow("u", "app")
		synctest.Wait()
		if r := l.results("1"); r.Readiness != podsync.Success {
			t.Errorf("not asked: %v", r)
		}
	})
}
