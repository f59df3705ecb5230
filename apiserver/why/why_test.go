package why_test

import (
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/apiserver/why"
	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/crisp-cri/crisp/internal/timeline"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func waiting(name, reason, message string) v1.ContainerStatus {
	return v1.ContainerStatus{Name: name, State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason, Message: message}}}
}

func running(name string, started, ready bool) v1.ContainerStatus {
	return v1.ContainerStatus{Name: name, Started: &started, Ready: ready, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}
}

func ended(name string, code int32) v1.ContainerStatus {
	return v1.ContainerStatus{Name: name, State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code, Reason: "Error"}}}
}

// podOf returns a pod with these init containers and containers.
func podOf(init, containers []v1.ContainerStatus) *v1.Pod {
	always := v1.ContainerRestartPolicyAlways
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	p.Spec.InitContainers = []v1.Container{{Name: "init"}, {Name: "side", RestartPolicy: &always}}
	p.Status.InitContainerStatuses, p.Status.ContainerStatuses = init, containers
	return p
}

// Reasons for waiting that are not stages of the start.
func TestWaits(t *testing.T) {
	deleted := podOf(nil, []v1.ContainerStatus{running("app", true, false)})
	deleted.DeletionTimestamp = &metav1.Time{}
	crashed := waiting("app", "CrashLoopBackOff", "back-off 10s")
	crashed.RestartCount = 3
	for _, test := range []struct {
		name     string
		pod      *v1.Pod
		failures map[string]podsync.Failure
		want     []why.Wait
	}{
		{name: "new", pod: podOf(nil, nil)},
		{name: "being made", pod: podOf([]v1.ContainerStatus{waiting("init", "PodInitializing", "")}, []v1.ContainerStatus{waiting("app", "PodInitializing", "")})},
		{name: "its sandbox fails", pod: podOf(nil, nil), failures: map[string]podsync.Failure{podsync.SandboxSubject: {Reason: "FailedMount", Message: "no such map"}},
			want: []why.Wait{{Name: why.BackOff, Detail: "FailedMount: no such map"}}},
		{name: "init container", pod: podOf([]v1.ContainerStatus{running("init", true, false), waiting("side", "PodInitializing", "")}, nil),
			want: []why.Wait{{Name: why.Init, Container: "init"}}},
		{name: "sidecar", pod: podOf([]v1.ContainerStatus{ended("init", 0), running("side", false, false)}, nil),
			want: []why.Wait{{Name: why.Startup, Container: "side"}}},
		{name: "probes", pod: podOf(nil, []v1.ContainerStatus{running("app", true, true), running("db", true, false), running("slow", false, false)}),
			want: []why.Wait{{Name: why.Readiness, Container: "db"}, {Name: why.Startup, Container: "slow"}}},
		{name: "crash", pod: podOf(nil, []v1.ContainerStatus{crashed}),
			want: []why.Wait{{Name: why.BackOff, Container: "app", Attempt: 3, Detail: "CrashLoopBackOff: back-off 10s"}}},
		{name: "another of the name", pod: podOf(nil, []v1.ContainerStatus{waiting("app", "PredecessorTerminating", "it ends"), waiting("db", "PredecessorTerminating", "it ends")}),
			want: []why.Wait{{Name: why.Predecessor, Detail: "it ends"}}},
		{name: "ready", pod: podOf([]v1.ContainerStatus{ended("init", 0), running("side", true, true)}, []v1.ContainerStatus{running("app", true, true)})},
		{name: "deleted", pod: deleted},
	} {
		t.Run(test.name, func(t *testing.T) {
			if d := cmp.Diff(test.want, why.Waits(test.pod, &test.pod.Status, test.failures)); d != "" {
				t.Error(d)
			}
		})
	}
}

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(name, container string, from, to int, parts ...timeline.Stage) timeline.Stage {
	s := timeline.Stage{Name: name, Container: container, Begin: t0.Add(time.Duration(from) * time.Second), Parts: parts}
	if to >= 0 {
		s.End = t0.Add(time.Duration(to) * time.Second)
	}
	return s
}

func withDetail(s timeline.Stage, detail string) timeline.Stage {
	s.Detail = detail
	return s
}

func said(reason, container, message string) v1.Event {
	return v1.Event{Type: v1.EventTypeWarning, Reason: reason, Message: message, InvolvedObject: v1.ObjectReference{FieldPath: "spec.containers{" + container + "}"}}
}

// A sentence for each cause, as a user reads it; now is ten seconds after the pod was seen.
func TestSentence(t *testing.T) {
	plain := podOf(nil, nil)
	ready := podOf(nil, nil)
	ready.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	failed, done, evicted, deleted := podOf(nil, []v1.ContainerStatus{ended("app", 3)}), podOf(nil, nil), podOf(nil, nil), podOf(nil, nil)
	failed.Status.Phase, done.Status.Phase, evicted.Status.Phase = v1.PodFailed, v1.PodSucceeded, v1.PodFailed
	evicted.Status.Reason, evicted.Status.Message = "Evicted", "The node was low on memory."
	deleted.DeletionTimestamp = &metav1.Time{}
	pull := &pulls.Pull{Image: "reg.test/app:1", From: "mirror.test", Mirror: true, Bytes: 43, Total: 100, Rate: 1, AllKnown: true}
	for _, test := range []struct {
		name  string
		facts why.Facts
		want  string
	}{
		{"nothing known", why.Facts{Pod: plain}, "default/web is not ready, and nothing says why"},
		{"pull", why.Facts{Pod: plain, Pull: pull, Stages: []timeline.Stage{at("pull", "app", 0, -1)}},
			"default/web is not ready: image reg.test/app:1 is being pulled from the mirror mirror.test: 43 %, 1 B/s, 57 s left"},
		{"pull that the runtime reports nothing about", why.Facts{Pod: plain, Stages: []timeline.Stage{at("pull", "app", 4, -1)}},
			"default/web is not ready: the image of container app is being pulled, for 6.0 s"},
		{"turn", why.Facts{Pod: plain, Stages: []timeline.Stage{at("wait for a turn to pull", "app", 4, -1)}},
			"default/web is not ready: the image of container app waits for its turn to be pulled, for 6.0 s"},
		{"plugin", why.Facts{Pod: plain, Stages: []timeline.Stage{at("volumes", "", 0, 1), at("sandbox", "", 1, -1, at("cni", "", 2, -1, at("cni.slow", "", 2, -1)))}},
			"default/web is not ready: its sandbox is being made (CNI plugin slow), for 9.0 s"},
		{"volume", why.Facts{Pod: plain, Stages: []timeline.Stage{at("volumes", "", 0, -1, at("volume data", "", 0, -1))}},
			"default/web is not ready: its volumes are being made (volume data), for 10.0 s"},
		{"probe", why.Facts{Pod: plain, Stages: []timeline.Stage{at("start", "app", 0, 1), at("readiness probe", "app", 1, -1)},
			Events: []v1.Event{said("Unhealthy", "app", "old"), said("Unhealthy", "app", "Readiness probe failed: HTTP probe\nfailed with statuscode: 500"), said("Unhealthy", "other", "no")}},
			"default/web is not ready: the readiness probe of container app has not succeeded, for 9.0 s: Readiness probe failed: HTTP probe failed with statuscode: 500"},
		{"back-off before probes", why.Facts{Pod: plain, Stages: []timeline.Stage{at("readiness probe", "app", 1, -1), withDetail(at("back-off", "db", 0, -1), "ImagePullBackOff: no such image")}},
			"default/web is not ready: container db waits: ImagePullBackOff: no such image"},
		{"init container", why.Facts{Pod: plain, Stages: []timeline.Stage{at("init", "init", 5, -1)}},
			"default/web is not ready: init container init has not ended, for 5.0 s"},
		{"of a kubelet, by its status", why.Facts{Pod: podOf(nil, []v1.ContainerStatus{running("app", true, false)})},
			"default/web is not ready: the readiness probe of container app has not succeeded"},
		{"by its events", why.Facts{Pod: plain, Events: []v1.Event{said("FailedScheduling", "", "no room")}},
			"default/web is not ready: FailedScheduling: no room"},
		{"ready", why.Facts{Pod: ready}, "default/web is ready"},
		{"was slow", why.Facts{Pod: ready, Seen: t0, Ready: t0.Add(10 * time.Second),
			Stages: []timeline.Stage{at("sandbox", "", 0, 1), withDetail(at("pull", "app", 1, 9, at("layers", "", 2, 9)), "app:1, 12 MB from reg.test")}},
			"default/web is ready: it took 10.0 s, most of it for pull app (8.0 s, of which layers took 7.0 s: app:1, 12 MB from reg.test)"},
		{"failed", why.Facts{Pod: failed}, "default/web has failed: container app has ended with code 3 (Error)"},
		{"evicted", why.Facts{Pod: evicted}, "default/web has failed: Evicted: The node was low on memory."},
		{"done", why.Facts{Pod: done}, "default/web has succeeded"},
		{"deleted", why.Facts{Pod: deleted}, "default/web is terminating"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if d := cmp.Diff(test.want, why.Sentence(test.facts, t0.Add(10*time.Second))); d != "" {
				t.Error(d)
			}
		})
	}
}
