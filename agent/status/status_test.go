package status_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var now = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func pod(policy v1.RestartPolicy, init bool) *v1.Pod {
	p := &v1.Pod{}
	p.UID = types.UID("u")
	p.Spec.RestartPolicy = policy
	p.Spec.Containers = []v1.Container{{Name: "a", Image: "i"}, {Name: "b", Image: "i"}}
	if init {
		p.Spec.InitContainers = []v1.Container{{Name: "init", Image: "i"}}
	}
	return p
}

func running(name string) podsync.Container {
	return podsync.Container{ID: name, UID: "u", Name: name, State: podsync.Running, StartedAt: now.Add(-time.Minute)}
}

// exited returns a container that ended an hour ago, so that its back-off is over.
func exited(name string, code int32) podsync.Container {
	return podsync.Container{ID: name, UID: "u", Name: name, State: podsync.Exited, ExitCode: code, FinishedAt: now.Add(-time.Hour)}
}

// crashed returns a container that ended a second ago for the third time.
func crashed(name string) podsync.Container {
	c := exited(name, 1)
	c.Attempt, c.FinishedAt, c.Backoff = 2, now.Add(-time.Second), 10*time.Second
	return c
}

// oomKilled returns a container with an OOM-killed process whose init exited with 0.
func oomKilled(name string) podsync.Container {
	c := exited(name, 0)
	c.Reason = "OOMKilled"
	return c
}

func TestPhase(t *testing.T) {
	const always, onFailure, never = v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	type list = []podsync.Container
	for _, test := range []struct {
		name       string
		policy     v1.RestartPolicy
		init       bool
		containers list
		phase      v1.PodPhase
		ready      bool
	}{
		{"nothing yet", always, false, nil, v1.PodPending, false},
		{"one of two", always, false, list{running("a")}, v1.PodPending, false},
		{"both", always, false, list{running("a"), running("b")}, v1.PodRunning, true},
		{"one crashed", always, false, list{crashed("a"), running("b")}, v1.PodRunning, false},
		{"both crashed", always, false, list{crashed("a"), crashed("b")}, v1.PodRunning, false},
		{"one done", never, false, list{exited("a", 0), running("b")}, v1.PodRunning, false},
		{"both done", never, false, list{exited("a", 0), exited("b", 0)}, v1.PodSucceeded, false},
		{"one failed", never, false, list{exited("a", 1), exited("b", 0)}, v1.PodFailed, false},
		{"done on failure", onFailure, false, list{exited("a", 0), exited("b", 0)}, v1.PodSucceeded, false},
		{"failed on failure", onFailure, false, list{crashed("a"), exited("b", 0)}, v1.PodRunning, false},
		{"initialising", always, true, list{running("init")}, v1.PodPending, false},
		{"initialised", always, true, list{exited("init", 0)}, v1.PodPending, false},
		{"init failed", always, true, list{crashed("init")}, v1.PodPending, false},
		{"init failed for good", never, true, list{exited("init", 1)}, v1.PodFailed, false},
		{"init out of memory for good", never, true, list{oomKilled("init")}, v1.PodFailed, false},
		{"init out of memory, again on failure", onFailure, true, list{oomKilled("init")}, v1.PodPending, false},
		{"running after init", always, true, list{exited("init", 0), running("a"), running("b")}, v1.PodRunning, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := status.Of(pod(test.policy, test.init), podsync.Have{Containers: test.containers}, nil, status.Node{}, now)
			if s.Phase != test.phase {
				t.Errorf("phase %s, want %s", s.Phase, test.phase)
			}
			for _, c := range s.Conditions {
				if c.Type == v1.PodReady && (c.Status == v1.ConditionTrue) != test.ready {
					t.Errorf("ready is %s, want %v", c.Status, test.ready)
				}
			}
		})
	}
}

// The status of a waiting container says why it waits, and how it ended before.
func TestWaiting(t *testing.T) {
	have := podsync.Have{
		Containers: []podsync.Container{crashed("a")},
		Failures: map[string]podsync.Failure{
			podsync.ContainerSubject("b"): {Reason: "ErrImagePull", Message: "no such image", Until: now.Add(time.Second)},
		},
	}
	s := status.Of(pod(v1.RestartPolicyAlways, false), have, nil, status.Node{Runtime: "crisp"}, now)
	a, b := s.ContainerStatuses[0], s.ContainerStatuses[1]
	if a.State.Waiting == nil || a.State.Waiting.Reason != "CrashLoopBackOff" {
		t.Errorf("a is %+v, want it waiting for its back-off", a.State)
	}
	if a.LastTerminationState.Terminated == nil || a.LastTerminationState.Terminated.ExitCode != 1 {
		t.Errorf("a ended as %+v, want code 1", a.LastTerminationState)
	}
	if a.RestartCount != 2 || a.ContainerID != "crisp://a" {
		t.Errorf("a has %d restarts and the ID %s", a.RestartCount, a.ContainerID)
	}
	if b.State.Waiting == nil || b.State.Waiting.Reason != "ImagePullBackOff" || !strings.Contains(b.State.Waiting.Message, "no such image") {
		t.Errorf("b is %+v, want ImagePullBackOff", b.State)
	}
}

// A container that its probes kill repeatedly waits like one that crashes, and has that reason. Its
// first restarts are immediate.
func TestKilledAgainAndAgain(t *testing.T) {
	of := func(attempt uint32, backoff, ended time.Duration) podsync.Container {
		c := exited("a", 137)
		c.ID = fmt.Sprintf("a%d", attempt)
		c.Attempt, c.Backoff, c.StartedAt, c.FinishedAt = attempt, backoff, now.Add(-ended-time.Second), now.Add(-ended)
		return c
	}
	for _, test := range []struct {
		name       string
		containers []podsync.Container
		want       string
	}{
		{"first", []podsync.Container{of(0, 0, time.Second)}, ""},
		{"second", []podsync.Container{of(1, -1, time.Second), of(0, 0, 4*time.Second)}, ""},
		{"third", []podsync.Container{of(2, 0, time.Second), of(1, -1, 4*time.Second)}, "back-off 10s restarting failed container=a pod=_(u)"},
		{"fourth", []podsync.Container{of(3, 10*time.Second, time.Second), of(2, 0, 4*time.Second)}, "back-off 20s restarting failed container=a pod=_(u)"},
		{"its time has come", []podsync.Container{of(3, 10*time.Second, time.Second), of(2, 0, 21*time.Second)}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			have := podsync.Have{Containers: test.containers, Restarted: map[string]bool{}}
			for _, c := range test.containers {
				have.Restarted[c.ID] = true
			}
			got := ""
			s := status.Of(pod(v1.RestartPolicyAlways, false), have, nil, status.Node{}, now).ContainerStatuses[0]
			if s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff" {
				got = s.State.Waiting.Message
			}
			if got != test.want {
				t.Errorf("it is %+v, want CrashLoopBackOff with %q", s.State, test.want)
			}
		})
	}
}

// Addresses are the sandbox's, or the node's on its network.
func TestAddresses(t *testing.T) {
	node := status.Node{HostIPs: []string{"192.0.2.1"}}
	have := podsync.Have{Sandboxes: []podsync.Sandbox{{UID: "u", Ready: true, IPs: []string{"10.0.0.2", "fd00::2"}, CreatedAt: now}}}
	p := pod(v1.RestartPolicyAlways, false)
	if s := status.Of(p, have, nil, node, now); s.PodIP != "10.0.0.2" || len(s.PodIPs) != 2 || s.HostIP != "192.0.2.1" || !s.StartTime.Time.Equal(now) {
		t.Errorf("got %s %v on %s since %v", s.PodIP, s.PodIPs, s.HostIP, s.StartTime)
	}
	p.Spec.HostNetwork = true
	have.Sandboxes[0].IPs = nil
	if s := status.Of(p, have, nil, node, now); s.PodIP != "192.0.2.1" {
		t.Errorf("on the host's network got %q", s.PodIP)
	}
}

// known has the inputs of a Store: the node's address, the saved status, and the probes of
// container a.
type known struct {
	ip     string
	saved  int
	probes podsync.Probes
}

func (k *known) IPs() []string { return strings.Fields(k.ip) }

func (k *known) RuntimeName() string { return "crisp" }

func (k *known) LoadStatus(*v1.Pod) *v1.PodStatus { return nil }

func (k *known) SaveStatus(*v1.Pod, *v1.PodStatus) error {
	k.saved++
	return nil
}

func (k *known) Of(*v1.Pod, podsync.Have) map[string]podsync.Probes {
	return map[string]podsync.Probes{"a": k.probes}
}

// A probe's result is shown even while the pod's worker is busy, and saved with the next report.
func TestProbedWhileBusy(t *testing.T) {
	k := &known{}
	s := status.NewStore(k, k, k, slog.New(slog.DiscardHandler))
	p := pod(v1.RestartPolicyAlways, false)
	p.Spec.Containers[0].ReadinessProbe, p.Spec.Containers[0].StartupProbe = &v1.Probe{}, &v1.Probe{}
	if _, now := s.Probed(p.UID); now != nil {
		t.Error("a status of nothing")
	}
	b := exited("b", 1)
	b.Attempt, b.FinishedAt, b.Backoff = 1, time.Now(), time.Minute
	have := in("x", running("a"), b)
	have.Restarted, have.Failures = map[string]bool{}, map[string]podsync.Failure{}
	s.Report(p, have)
	// The worker continues.
	have.Restarted["b"] = true
	have.Failures[podsync.ContainerSubject("b")] = podsync.Failure{Reason: "ErrImagePull"}
	for _, step := range []struct {
		now            podsync.Probes
		started, ready bool
	}{
		{podsync.Probes{Startup: podsync.Success, Readiness: podsync.Failing}, true, false},
		{podsync.Probes{Startup: podsync.Success, Readiness: podsync.Success}, true, true},
		{podsync.Probes{Startup: podsync.Success, Readiness: podsync.Failing}, true, false},
	} {
		k.probes = step.now
		_, now := s.Probed(p.UID)
		if now == nil {
			t.Fatalf("%v changes nothing", step.now)
		}
		if c := now.ContainerStatuses[0]; c.Ready != step.ready || *c.Started != step.started || s.Get(p.UID) != now {
			t.Errorf("%v: started %v, ready %v", step.now, *c.Started, c.Ready)
		}
		if why := now.ContainerStatuses[1].State.Waiting; why == nil || why.Reason != "CrashLoopBackOff" {
			t.Errorf("b waits for %+v, which was not reported", why)
		}
	}
	if k.saved != 1 {
		t.Errorf("saved %d times without a report", k.saved-1)
	}
	delete(have.Restarted, "b")
	clear(have.Failures)
	if s.Report(p, have); k.saved != 2 {
		t.Error("not saved by the worker")
	}
	if s.Report(p, have); k.saved != 2 {
		t.Error("saved though nothing has changed")
	}
	s.Forget(podsync.KeyOf(p))
	k.probes = podsync.Probes{}
	if _, now := s.Probed(p.UID); now != nil {
		t.Error("a status of a pod that is forgotten")
	}
}

// When DHCP gives the node another address, pods on its network are probed at the new one.
func TestNodeAddressChanges(t *testing.T) {
	k := &known{}
	s := status.NewStore(k, k, k, slog.New(slog.DiscardHandler))
	p := pod(v1.RestartPolicyAlways, false)
	p.Spec.HostNetwork = true
	have := podsync.Have{Sandboxes: []podsync.Sandbox{{UID: "u", Ready: true, CreatedAt: now}}}
	for _, ip := range []string{"", "192.0.2.1", "192.0.2.2"} {
		k.ip = ip
		if got := s.Report(p, have); got.HostIP != ip || got.PodIP != ip {
			t.Errorf("at %q the pod is at %q on %q", ip, got.PodIP, got.HostIP)
		}
	}
}

// A pod whose workload has failed fails with it, whatever its containers do.
func TestEndedByWorkload(t *testing.T) {
	p := pod(v1.RestartPolicyOnFailure, false)
	p.Annotations = map[string]string{podsync.AnnotationEnded: "BackoffLimitExceeded"}
	s := status.Of(p, in("x", running("a"), running("b")), nil, status.Node{}, now)
	if s.Phase != v1.PodFailed || s.Reason != "BackoffLimitExceeded" {
		t.Errorf("phase %s, reason %s", s.Phase, s.Reason)
	}
}

// The last update of a pod's images is a condition, with the time at which it got its state.
func TestImageUpdated(t *testing.T) {
	h := podsync.Have{Update: &v1.PodCondition{Type: podsync.ImageUpdated, Status: v1.ConditionFalse, Reason: "RolledBack", LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}}
	s := status.Of(pod(v1.RestartPolicyAlways, false), h, nil, status.Node{}, now)
	s = status.Of(pod(v1.RestartPolicyAlways, false), h, &s, status.Node{}, now.Add(time.Minute))
	last := s.Conditions[len(s.Conditions)-1]
	if last.Type != podsync.ImageUpdated || last.Reason != "RolledBack" || !last.LastTransitionTime.Equal(&h.Update.LastTransitionTime) {
		t.Errorf("the last condition is %+v", last)
	}
}
