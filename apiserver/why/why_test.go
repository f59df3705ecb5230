package why_test

import (
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/apiserver/why"
	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/crisp-cri/crisp/internal/timeline"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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

// crashed returns the status of a container that waits since it has ended, twice, two seconds ago.
func crashed(name string, end v1.ContainerStateTerminated) v1.ContainerStatus {
	c := waiting(name, "CrashLoopBackOff", "back-off 20s restarting failed container="+name+" pod=web_default(u)")
	end.FinishedAt = metav1.NewTime(t0.Add(8 * time.Second))
	c.RestartCount, c.LastTerminationState.Terminated = 1, &end
	return c
}

type lastLine string

func (l lastLine) LastLine(string) string { return string(l) }

// What people ask first about a container that ends again and again: how, when next, and what it said.
func TestSentenceOfCrashes(t *testing.T) {
	oom := podOf(nil, []v1.ContainerStatus{running("side", true, true), crashed("app", v1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"})})
	oom.Spec.Containers = []v1.Container{{Name: "app", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("16Mi")}}}}
	code := podOf(nil, []v1.ContainerStatus{crashed("app", v1.ContainerStateTerminated{ExitCode: 3, Reason: "Error"})})
	signal := podOf(nil, []v1.ContainerStatus{crashed("app", v1.ContainerStateTerminated{ExitCode: 143, Reason: "Error"})})
	missing := podOf(nil, []v1.ContainerStatus{crashed("app", v1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError", Message: "exec: no such file"})})
	again := podOf(nil, []v1.ContainerStatus{running("app", true, false)})
	again.Status.ContainerStatuses[0].RestartCount, again.Status.ContainerStatuses[0].LastTerminationState = 1, code.Status.ContainerStatuses[0].LastTerminationState
	ready := again.DeepCopy()
	ready.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	init := podOf([]v1.ContainerStatus{crashed("init", v1.ContainerStateTerminated{ExitCode: 1})}, []v1.ContainerStatus{waiting("app", "PodInitializing", "")})
	failed := podOf(nil, []v1.ContainerStatus{ended("app", 3)})
	failed.Status.Phase = v1.PodFailed
	for _, test := range []struct {
		name  string
		facts why.Facts
		want  string
	}{
		{"out of memory", why.Facts{Pod: oom}, "not ready: container app was killed, as it ran out of memory (limit 16Mi) 2.0 s ago, run 2; next try in 18.0 s; try: raise its memory limit"},
		{"its last line", why.Facts{Pod: code, Logs: lastLine("panic: cannot open\t/etc/app.conf\n")},
			"not ready: container app ended with code 3 (Error) 2.0 s ago, run 2; next try in 18.0 s; last line: panic: cannot open /etc/app.conf; try: crisp logs, with --previous for the run before"},
		{"a long last line", why.Facts{Pod: code, Logs: lastLine(strings.Repeat("é", 300))},
			"not ready: container app ended with code 3 (Error) 2.0 s ago, run 2; next try in 18.0 s; last line: " + strings.Repeat("é", 100) + "…; try: crisp logs, with --previous for the run before"},
		{"a signal", why.Facts{Pod: signal, Logs: lastLine("")}, "not ready: container app ended with code 143 (SIGTERM) 2.0 s ago, run 2; next try in 18.0 s; try: crisp logs, with --previous for the run before"},
		{"no such program", why.Facts{Pod: missing, Logs: lastLine("no")}, "not ready: container app could not be started 2.0 s ago, run 2; next try in 18.0 s; exec: no such file; try: correct its command: the image has no such program"},
		{"before what the runtime does", why.Facts{Pod: code, Stages: []timeline.Stage{at("back-off", "app", 1, -1)}}, "not ready: container app ended with code 3 (Error) 2.0 s ago, run 2; next try in 18.0 s; try: crisp logs, with --previous for the run before"},
		{"runs again", why.Facts{Pod: again}, "not ready: the readiness probe of container app has not succeeded; before, container app ended with code 3 (Error) 2.0 s ago, run 1; try: crisp logs, and ask as the probe does"},
		{"ready again", why.Facts{Pod: ready}, "ready, but container app ended with code 3 (Error) 2.0 s ago, run 1; try: crisp logs, with --previous for the run before"},
		{"init container", why.Facts{Pod: init}, "not ready: container init ended with code 1 (no reason) 2.0 s ago, run 2; next try in 18.0 s; try: crisp logs, with --previous for the run before"},
		{"for good", why.Facts{Pod: failed, Logs: lastLine("panic: no\n")}, "failed: container app ended with code 3 (Error); last line: panic: no; try: crisp logs, with --previous for the run before"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := why.Sentence(test.facts, t0.Add(10*time.Second))
			got = strings.TrimPrefix(strings.TrimPrefix(got, "default/web is "), "default/web has ")
			if d := cmp.Diff(test.want, got); d != "" {
				t.Error(d)
			}
		})
	}
	if got := why.Sentence(why.Facts{Pod: ready}, t0.Add(time.Hour)); got != "default/web is ready" {
		t.Errorf("an hour later: %s", got)
	}
}

// A sentence for each cause, as a user reads it; now is ten seconds after the pod was seen.
func TestSentence(t *testing.T) {
	plain := podOf(nil, nil)
	ready := podOf(nil, nil)
	ready.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	updated := ready.DeepCopy()
	updated.Status.Conditions = append(updated.Status.Conditions, v1.PodCondition{Type: podsync.ImageUpdated, Message: "container app was updated from sha256:1 to sha256:2", LastTransitionTime: metav1.NewTime(t0.Add(5 * time.Second))})
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
			"default/web is not ready: the readiness probe of container app has not succeeded, for 9.0 s: Readiness probe failed: HTTP probe failed with statuscode: 500; try: crisp logs, and ask as the probe does"},
		{"back-off before probes", why.Facts{Pod: plain, Stages: []timeline.Stage{at("readiness probe", "app", 1, -1), withDetail(at("back-off", "db", 0, -1), "ImagePullBackOff: no such image")}},
			"default/web is not ready: container db waits: ImagePullBackOff: no such image"},
		{"init container", why.Facts{Pod: plain, Stages: []timeline.Stage{at("init", "init", 5, -1)}},
			"default/web is not ready: init container init has not ended, for 5.0 s; try: crisp logs with -c and its name"},
		{"of a kubelet, by its status", why.Facts{Pod: podOf(nil, []v1.ContainerStatus{running("app", true, false)})},
			"default/web is not ready: the readiness probe of container app has not succeeded; try: crisp logs, and ask as the probe does"},
		{"by its events", why.Facts{Pod: plain, Events: []v1.Event{said("FailedScheduling", "", "no room")}},
			"default/web is not ready: FailedScheduling: no room"},
		{"ready", why.Facts{Pod: ready}, "default/web is ready"},
		{"was slow", why.Facts{Pod: ready, Seen: t0, Ready: t0.Add(10 * time.Second),
			Stages: []timeline.Stage{at("sandbox", "", 0, 1), withDetail(at("pull", "app", 1, 9, at("layers", "", 2, 9)), "app:1, 12 MB from reg.test")}},
			"default/web is ready: it took 10.0 s, most of it for pull app (8.0 s, of which layers took 7.0 s: app:1, 12 MB from reg.test)"},
		{"updated", why.Facts{Pod: updated}, "default/web is ready; 5.0 s ago container app was updated from sha256:1 to sha256:2"},
		{"failed", why.Facts{Pod: failed}, "default/web has failed: container app ended with code 3 (Error); try: crisp logs, with --previous for the run before"},
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
