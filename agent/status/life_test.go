package status_test

import (
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// sidecar returns a pod with a sidecar s before its containers a and b.
func sidecar(policy v1.RestartPolicy) *v1.Pod {
	p := pod(policy, false)
	p.Spec.InitContainers = []v1.Container{{Name: "s", RestartPolicy: new(v1.ContainerRestartPolicyAlways)}}
	return p
}

func in(sandbox string, list ...podsync.Container) podsync.Have {
	for i := range list {
		list[i].SandboxID = sandbox
	}
	return podsync.Have{Sandboxes: []podsync.Sandbox{{ID: sandbox, UID: "u", Ready: true, IPs: []string{"10.0.0.2"}}}, Containers: list}
}

func conditions(s v1.PodStatus) string {
	var words []string
	for _, c := range s.Conditions {
		word := string(c.Type) + "=" + string(c.Status)
		if c.Reason != "" {
			word += ":" + c.Reason
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// The kubelet's test cases of pods with sidecars (TestPodPhaseWith…RestartableInit…).
func TestSidecarPhase(t *testing.T) {
	const always, onFailure, never = v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	unstarted := func(p *v1.Pod) { p.Spec.InitContainers[0].StartupProbe = &v1.Probe{} }
	for _, test := range []struct {
		name       string
		pod        *v1.Pod
		edit       func(*v1.Pod)
		containers []podsync.Container
		phase      v1.PodPhase
		init       v1.ConditionStatus
	}{
		{"nothing yet", sidecar(always), nil, nil, v1.PodPending, v1.ConditionFalse},
		{"the sidecar runs", sidecar(always), nil, []podsync.Container{running("s")}, v1.PodPending, v1.ConditionTrue},
		{"the sidecar has not started", sidecar(always), unstarted, []podsync.Container{running("s")}, v1.PodPending, v1.ConditionFalse},
		{"all run", sidecar(always), nil, []podsync.Container{running("s"), running("a"), running("b")}, v1.PodRunning, v1.ConditionTrue},
		{"the sidecar starts again", sidecar(always), unstarted, []podsync.Container{running("s"), running("a"), running("b")}, v1.PodRunning, v1.ConditionTrue},
		{"the sidecar has crashed", sidecar(always), nil, []podsync.Container{crashed("s"), running("a"), running("b")}, v1.PodRunning, v1.ConditionTrue},
		{"the containers are done, the sidecar runs", sidecar(never), nil, []podsync.Container{running("s"), exited("a", 0), exited("b", 0)}, v1.PodRunning, v1.ConditionTrue},
		{"all are done", sidecar(never), nil, []podsync.Container{exited("s", 143), exited("a", 0), exited("b", 0)}, v1.PodSucceeded, v1.ConditionTrue},
		{"one has failed", sidecar(never), nil, []podsync.Container{exited("s", 143), exited("a", 1), exited("b", 0)}, v1.PodFailed, v1.ConditionTrue},
		{"one is to run again", sidecar(onFailure), nil, []podsync.Container{exited("s", 143), exited("a", 1), exited("b", 0)}, v1.PodRunning, v1.ConditionTrue},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.edit != nil {
				test.edit(test.pod)
			}
			s := status.Of(test.pod, in("x", test.containers...), nil, status.Node{}, now)
			if s.Phase != test.phase || !strings.Contains(conditions(s), "Initialized="+string(test.init)) {
				t.Errorf("%s, %s; want %s, initialized %s", s.Phase, conditions(s), test.phase, test.init)
			}
		})
	}
}

// A terminal phase stays, whatever happens to the containers.
func TestTerminalSticks(t *testing.T) {
	p := pod(v1.RestartPolicyNever, false)
	done := status.Of(p, in("x", exited("a", 0), exited("b", 0)), nil, status.Node{}, now)
	if want := "PodReadyToStartContainers=True Initialized=True:PodCompleted Ready=False:PodCompleted ContainersReady=False:PodCompleted PodScheduled=True"; conditions(done) != want {
		t.Errorf("conditions %s", conditions(done))
	}
	later := status.Of(p, podsync.Have{}, &done, status.Node{}, now.Add(time.Hour))
	if later.Phase != v1.PodSucceeded || !later.StartTime.Equal(done.StartTime) || later.ContainerStatuses[0].State.Terminated == nil {
		t.Errorf("after a reboot: %+v", later)
	}
	if later.PodIP != "10.0.0.2" {
		t.Errorf("address %q", later.PodIP)
	}
}

// A verdict fails the pod while its containers still run, and is its reason.
func TestVerdict(t *testing.T) {
	h := in("x", running("a"), running("b"))
	h.Verdict = &podsync.Verdict{Reason: "Evicted", Message: "no memory", Condition: &v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "TerminationByKubelet"}}
	s := status.Of(pod(v1.RestartPolicyAlways, false), h, nil, status.Node{}, now)
	if s.Phase != v1.PodFailed || s.Reason != "Evicted" || s.Message != "no memory" || !strings.HasPrefix(conditions(s), "DisruptionTarget=True:TerminationByKubelet ") {
		t.Errorf("%+v", s)
	}
	h.Verdict = nil
	if s = status.Of(pod(v1.RestartPolicyAlways, false), h, &s, status.Node{}, now); s.Reason != "Evicted" || !strings.HasPrefix(conditions(s), "DisruptionTarget=True") {
		t.Errorf("afterwards %+v", s)
	}
}

// The status of a rejected pod has only the reason, now and later.
func TestRejected(t *testing.T) {
	h := podsync.Have{Verdict: &podsync.Verdict{Reason: "OutOfcpu", Message: "too much", Rejected: true}}
	p := pod(v1.RestartPolicyAlways, false)
	s := status.Of(p, h, nil, status.Node{}, now)
	if s.Phase != v1.PodFailed || s.Reason != "OutOfcpu" || len(s.Conditions)+len(s.ContainerStatuses) > 0 {
		t.Errorf("%+v", s)
	}
	if later := status.Of(p, podsync.Have{}, &s, status.Node{}, now.Add(time.Hour)); later.Reason != "OutOfcpu" || len(later.ContainerStatuses) > 0 {
		t.Errorf("later %+v", later)
	}
}

func TestDeadline(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, false)
	p.Spec.ActiveDeadlineSeconds = new(int64(60))
	h := in("x", running("a"), running("b"))
	first := status.Of(p, h, nil, status.Node{}, now)
	if s := status.Of(p, h, &first, status.Node{}, now.Add(59*time.Second)); s.Phase != v1.PodRunning {
		t.Errorf("too early: %s", s.Phase)
	}
	if s := status.Of(p, h, &first, status.Node{}, now.Add(60*time.Second)); s.Phase != v1.PodFailed || s.Reason != "DeadlineExceeded" {
		t.Errorf("too late: %s %s", s.Phase, s.Reason)
	}
}

// Started and ready come from probes or, while there is no result, from the previous status.
func TestProbes(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, false)
	p.Spec.Containers[0].ReadinessProbe, p.Spec.Containers[0].StartupProbe = &v1.Probe{}, &v1.Probe{}
	h := in("x", running("a"), running("b"))
	say := func(old *v1.PodStatus, p1 podsync.Probes) (v1.PodStatus, string) {
		h.Probes = map[string]podsync.Probes{"a": p1}
		s := status.Of(p, h, old, status.Node{}, now)
		c := s.ContainerStatuses[0]
		words := []string{"starting", "not ready"}
		if *c.Started {
			words[0] = "started"
		}
		if c.Ready {
			words[1] = "ready"
		}
		return s, strings.Join(words, ", ")
	}
	ready, _ := say(nil, podsync.Probes{Startup: podsync.Success, Readiness: podsync.Success})
	for _, test := range []struct {
		name   string
		old    *v1.PodStatus
		probes podsync.Probes
		want   string
	}{
		{"nothing said", nil, podsync.Probes{}, "starting, not ready"},
		{"started", nil, podsync.Probes{Startup: podsync.Success, Readiness: podsync.Failing}, "started, not ready"},
		{"ready", nil, podsync.Probes{Startup: podsync.Success, Readiness: podsync.Success}, "started, ready"},
		{"found so by a new agent", &ready, podsync.Probes{}, "started, ready"},
		{"found so, but not any more", &ready, podsync.Probes{Readiness: podsync.Failing}, "started, not ready"},
	} {
		if _, got := say(test.old, test.probes); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
	h.Containers[0].ID = "other" // a new container does not inherit that
	if _, got := say(&ready, podsync.Probes{}); got != "starting, not ready" {
		t.Errorf("another run: %s", got)
	}
}

// A condition whose status does not change keeps its time.
func TestTransitions(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, false)
	first := status.Of(p, in("x", running("a"), running("b")), nil, status.Node{}, now)
	second := status.Of(p, in("x", running("a"), crashed("b")), &first, status.Node{}, now.Add(time.Hour))
	for _, c := range second.Conditions {
		moved := c.Type == v1.PodReady || c.Type == v1.ContainersReady
		if want := now; !moved && !c.LastTransitionTime.Time.Equal(want) || moved && !c.LastTransitionTime.Time.Equal(want.Add(time.Hour)) {
			t.Errorf("%s moved at %v", c.Type, c.LastTransitionTime)
		}
		if moved && c.Message != "containers with unready status: [b]" {
			t.Errorf("%s: %q", c.Type, c.Message)
		}
	}
}

// If a process of an init container was OOM-killed, the container has failed, whatever its exit
// code. Otherwise a pod that ends because of it would stay Pending.
func TestInitOutOfMemory(t *testing.T) {
	for policy, want := range map[v1.RestartPolicy]v1.PodPhase{v1.RestartPolicyNever: v1.PodFailed, v1.RestartPolicyOnFailure: v1.PodPending} {
		c := exited("init", 0)
		c.Reason = "OOMKilled"
		s := status.Of(pod(policy, true), in("x", c), nil, status.Node{}, now)
		if s.Phase != want || s.InitContainerStatuses[0].Ready {
			t.Errorf("%s: %s, ready: %t", policy, s.Phase, s.InitContainerStatuses[0].Ready)
		}
	}
}

// A container that was created but never started is removed, and its attempt is reused. The restart
// count does not decrease meanwhile.
func TestRestartCountDoesNotFall(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, false)
	created, before := running("a"), exited("a", 1)
	created.ID, created.State, created.Attempt = "second", podsync.Created, 1
	old := status.Of(p, in("x", created, before), nil, status.Node{}, now)
	s := status.Of(p, in("x", before), &old, status.Node{}, now)
	if old.ContainerStatuses[0].RestartCount != 1 || s.ContainerStatuses[0].RestartCount != 1 {
		t.Errorf("%d, then %d", old.ContainerStatuses[0].RestartCount, s.ContainerStatuses[0].RestartCount)
	}
}

// The runtime has lost a container that ran after an earlier instance had succeeded. That instance
// does not determine how the lost one ended.
func TestForgottenAfterAnEarlierRun(t *testing.T) {
	p := pod(v1.RestartPolicyOnFailure, false)
	p.Spec.Containers = p.Spec.Containers[:1]
	last, before := running("a"), exited("a", 0)
	last.ID, last.Attempt = "second", 1
	old := status.Of(p, in("x", last, before), nil, status.Node{}, now)
	s := status.Of(p, podsync.Have{}, &old, status.Node{}, now)
	if end := s.ContainerStatuses[0].LastTerminationState.Terminated; podsync.Terminal(&s) || end.ExitCode != 137 {
		t.Errorf("%s, %+v", s.Phase, end)
	}
}

// A container that has succeeded stays so when the runtime has lost it, even if it cannot be
// started again.
func TestForgottenAfterItsEnd(t *testing.T) {
	p := pod(v1.RestartPolicyOnFailure, false)
	old := status.Of(p, in("x", exited("a", 0), running("b")), nil, status.Node{}, now)
	h := in("y", exited("b", 0))
	h.Failures = map[string]podsync.Failure{podsync.ContainerSubject("a"): {Reason: "ErrImagePull", At: now, Until: now}}
	if s := status.Of(p, h, &old, status.Node{}, now); s.Phase != v1.PodSucceeded {
		t.Errorf("%s, %+v", s.Phase, s.ContainerStatuses[0].State)
	}
}

// Containers that the runtime has lost keep their history.
func TestForgotten(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, true)
	old := status.Of(p, in("x", exited("init", 0), running("a"), crashed("b")), nil, status.Node{}, now)
	s := status.Of(p, podsync.Have{}, &old, status.Node{}, now)
	a := s.ContainerStatuses[0]
	if a.RestartCount != 1 || a.LastTerminationState.Terminated == nil || a.LastTerminationState.Terminated.ExitCode != 137 || a.LastTerminationState.Terminated.Reason != "ContainerStatusUnknown" {
		t.Errorf("a, which ran: %+v", a)
	}
	if b := s.ContainerStatuses[1]; b.RestartCount != 2 || b.LastTerminationState.Terminated.ExitCode != 1 {
		t.Errorf("b, which had crashed: %+v", b)
	}
	if s.Phase != v1.PodRunning { // as in the kubelet: the container was running before
		t.Errorf("phase %s", s.Phase)
	}
	init := status.Of(p, in("x", running("a"), running("b")), nil, status.Node{}, now).InitContainerStatuses[0]
	if init.State.Terminated == nil || !init.Ready || init.State.Terminated.Reason != "Completed" {
		t.Errorf("an init container that was removed: %+v", init)
	}
	debug := v1.EphemeralContainer{}
	debug.Name = "debug"
	p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, debug)
	old = status.Of(p, in("x", running("a"), running("b"), running("debug")), nil, status.Node{}, now)
	for range 2 {
		old = status.Of(p, in("x", running("a"), running("b")), &old, status.Node{}, now)
		if d := old.EphemeralContainerStatuses[0]; d.State.Terminated == nil || d.State.Terminated.Reason != "ContainerStatusUnknown" || d.RestartCount != 0 {
			t.Errorf("an ephemeral container, which does not start again: %+v", d)
		}
	}
}

// The status has the resources that the runtime reports. A difference to the spec is a resize in
// progress.
func TestResources(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, false)
	list := func(cpu string) v1.ResourceList { return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)} }
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{Limits: list("2"), Requests: list("1")}
	h := in("x", running("a"), running("b"))
	h.Containers[0].Resources = &v1.ResourceRequirements{Limits: list("1500m"), Requests: list("1")}
	h.Actual = map[string]v1.ResourceRequirements{"a": {Limits: list("1500m"), Requests: list("1")}}
	s := status.Of(p, h, nil, status.Node{}, now)
	a := s.ContainerStatuses[0]
	if got := a.Resources.Limits.Cpu().String(); got != "1500m" || a.AllocatedResources.Cpu().String() != "1" || !strings.HasPrefix(conditions(s), "PodResizeInProgress=True ") {
		t.Errorf("limit %s, allocated %v, %s", got, a.AllocatedResources, conditions(s))
	}
	tiny := pod(v1.RestartPolicyAlways, false)
	tiny.Spec.Containers[0].Resources.Limits = list("5m")
	h.Containers[0].Resources.Limits = list("10m")
	if got := status.Of(tiny, h, nil, status.Node{}, now).ContainerStatuses[0].Resources.Limits.Cpu().String(); got != "5m" {
		t.Errorf("a limit below what the kernel takes: %s", got)
	}
	h.Failures = map[string]podsync.Failure{podsync.ResizeSubject: {Reason: "ResizeError", Message: "no"}}
	if s = status.Of(p, h, nil, status.Node{}, now); !strings.HasPrefix(conditions(s), "PodResizeInProgress=True:Error ") {
		t.Errorf("%s", conditions(s))
	}
	h.Actual["a"] = p.Spec.Containers[0].Resources // what failed is not wanted any more
	if s = status.Of(p, h, nil, status.Node{}, now); strings.Contains(conditions(s), "Resize") {
		t.Errorf("%s", conditions(s))
	}
}

// A failed pull is shown first as an error and then as a back-off.
func TestPullShown(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, false)
	h := podsync.Have{Failures: map[string]podsync.Failure{podsync.ContainerSubject("a"): {Reason: "ErrImagePull", Message: "none", At: now, Until: now.Add(time.Minute)}}}
	for after, want := range map[time.Duration]string{0: "ErrImagePull", podsync.PullErrorShown: "ImagePullBackOff"} {
		s := status.Of(p, h, nil, status.Node{}, now.Add(after))
		if got := s.ContainerStatuses[0].State.Waiting.Reason; got != want {
			t.Errorf("after %v %s, want %s", after, got, want)
		}
	}
}

func TestQOS(t *testing.T) {
	both := func(cpu, memory string) v1.ResourceList {
		l := v1.ResourceList{}
		if cpu != "" {
			l[v1.ResourceCPU] = resource.MustParse(cpu)
		}
		if memory != "" {
			l[v1.ResourceMemory] = resource.MustParse(memory)
		}
		return l
	}
	for _, test := range []struct {
		limits, requests v1.ResourceList
		want             v1.PodQOSClass
	}{
		{nil, nil, v1.PodQOSBestEffort},
		{both("0", ""), nil, v1.PodQOSBestEffort},
		{both("1", "1Gi"), both("1", "1Gi"), v1.PodQOSGuaranteed},
		{both("1", "1Gi"), both("1", "512Mi"), v1.PodQOSBurstable},
		{both("1", ""), both("1", ""), v1.PodQOSBurstable},
		{nil, both("", "1"), v1.PodQOSBurstable},
	} {
		p := &v1.Pod{}
		p.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Limits: test.limits, Requests: test.requests}}}
		if got := status.QOS(p); got != test.want {
			t.Errorf("limits %v, requests %v: %s, want %s", test.limits, test.requests, got, test.want)
		}
		p.Spec.Resources = &v1.ResourceRequirements{Limits: v1.ResourceList{}} // an empty one counts as none
		if got := status.QOS(p); got != test.want {
			t.Errorf("limits %v, requests %v, and empty ones of the pod: %s, want %s", test.limits, test.requests, got, test.want)
		}
	}
}
