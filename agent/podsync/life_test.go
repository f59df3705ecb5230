package podsync_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// served returns a pod with an init container i and the sidecars s and t around it.
func served(policy v1.RestartPolicy, edit ...func(*v1.Pod)) *v1.Pod {
	p := pod(policy, "s", "i", "t")
	for _, k := range []int{0, 2} {
		p.Spec.InitContainers[k].RestartPolicy = new(v1.ContainerRestartPolicyAlways)
	}
	p.Spec.TerminationGracePeriodSeconds = new(int64(30))
	for _, f := range edit {
		f(p)
	}
	return p
}

func with(policy v1.RestartPolicy, edit func(*v1.Pod)) *v1.Pod {
	p := pod(policy)
	p.Spec.TerminationGracePeriodSeconds = new(int64(30))
	edit(p)
	return p
}

// probed sets results of probes: "s startup ok", "a liveness no".
func probed(lines ...string) func(*podsync.Have) {
	return func(h *podsync.Have) {
		h.Probes = map[string]podsync.Probes{}
		for _, line := range lines {
			words := strings.Fields(line)
			id, result := "", podsync.Success
			for _, c := range h.Containers {
				if c.Name == words[0] && id == "" {
					id = c.ID
				}
			}
			if words[2] == "no" {
				result = podsync.Failing
			}
			p := h.Probes[id]
			switch words[1] {
			case "startup":
				p.Startup = result
			case "liveness":
				p.Liveness = result
			}
			h.Probes[id] = p
		}
	}
}

func none(*podsync.Have) {}

const always, onFailure, never = v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever

var (
	probe = &v1.Probe{}
	brief = &v1.Probe{TerminationGracePeriodSeconds: new(int64(5))}
)

// lifeCases has the kubelet's cases, named after its tests if it has them (TestComputePodActions…).
var lifeCases = []struct {
	name string
	want *v1.Pod
	have string
	edit func(*podsync.Have)
	plan string
}{
	// Sidecars start in order; a running one lets the next one start.
	{"initialise: the first sidecar", served(always), "S0@u+", none, "start:s0/S0"},
	{"the sidecar runs: the init container", served(always), "S0@u+ s0/S0=run", none, "start:i0/S0"},
	{"the init container runs", served(always), "S0@u+ i0/S0=run s0/S0=run", none, ""},
	{"the init container is done: the last sidecar", served(always), "S0@u+ i0/S0=0 s0/S0=run", none, "start:t0/S0"},
	{"all sidecars run: the containers", served(always), "S0@u+ t0/S0=run i0/S0=0 s0/S0=run", none, "start:a0/S0 start:b0/S0"},
	{"a sidecar that fails while initialising", served(always), "S0@u+ i0/S0=run s0/S0=1", none, "start:s1/S0"},
	{"the init container fails", served(always), "S0@u+ i0/S0=1 s0/S0=run", none, "start:i1/S0"},
	{"the init container fails for good", served(never), "S0@u+ i0/S0=1 s0/S0=run", none, "stop:s0/S0"},
	{"… and the sidecar has ended", served(never), "S0@u+ i0/S0=1 s0/S0=143", none, "stop:S0"},
	{"the init container ran out of memory", served(always), "S0@u+ i0/S0=0 s0/S0=run", func(h *podsync.Have) { h.Containers[0].Reason = "OOMKilled" }, "start:i1/S0"},

	{"… and ended well", served(onFailure), "S0@u+ i0/S0=0 s0/S0=run", func(h *podsync.Have) { h.Containers[0].Reason = "OOMKilled" }, "start:i1/S0"},
	{"… by its rule", served(never, func(p *v1.Pod) { ruled(&p.Spec.InitContainers[1], "NotIn", 42) }), "S0@u+ i0/S0=0 s0/S0=run",
		func(h *podsync.Have) { h.Containers[0].Reason = "OOMKilled" }, "start:i1/S0"},
	{"… for good", served(never), "S0@u+ i0/S0=0 s0/S0=run", func(h *podsync.Have) { h.Containers[0].Reason = "OOMKilled" }, "stop:s0/S0"},
	{"… with a policy of its own", served(never, func(p *v1.Pod) { p.Spec.InitContainers[1].RestartPolicy = new(v1.ContainerRestartPolicyOnFailure) }),
		"S0@u+ i0/S0=0 s0/S0=run", func(h *podsync.Have) { h.Containers[0].Reason = "OOMKilled" }, "start:i1/S0"},

	// Sidecars are restarted while the pod runs, whatever its policy.
	{"a sidecar ends", served(always), "S0@u+ a0/S0=run b0/S0=run t0/S0=0 i0/S0=0 s0/S0=run", none, "start:t1/S0"},
	{"a sidecar ends in a pod that never restarts", served(never), "S0@u+ a0/S0=run b0/S0=run t0/S0=run i0/S0=0 s0/S0=1", none, "start:s1/S0"},
	{"a sidecar crash loops", served(always), "S0@u+ a0/S0=run b0/S0=run t1/S0=1~3 i0/S0=0 s0/S0=run", none, "again:7"},
	{"a sidecar was removed", served(always), "S0@u+ a0/S0=run b0/S0=run t0/S0=run i0/S0=0", none, "start:s0/S0"},
	{"an init container was removed", served(always), "S0@u+ a0/S0=run b0/S0=run t0/S0=run s0/S0=run", none, ""},
	{"the containers are done: so are the sidecars", served(onFailure), "S0@u+ a0/S0=0 b0/S0=0 t0/S0=run i0/S0=0 s0/S0=run", none, "stop:t0/S0 stop:s0/S0<t0/S0"},

	// Startup and liveness of sidecars.
	{"a sidecar has not started", served(always, func(p *v1.Pod) { p.Spec.InitContainers[0].StartupProbe = probe }), "S0@u+ s0/S0=run", none, ""},
	{"a sidecar has started", served(always, func(p *v1.Pod) { p.Spec.InitContainers[0].StartupProbe = probe }), "S0@u+ s0/S0=run", probed("s startup ok"), "start:i0/S0"},
	{"a sidecar has started, as an earlier agent saw", served(always, func(p *v1.Pod) { p.Spec.InitContainers[0].StartupProbe = probe }), "S0@u+ s0/S0=run", sawStarted("s", "s0/S0"), "start:i0/S0"},
	{"… another run of it", served(always, func(p *v1.Pod) { p.Spec.InitContainers[0].StartupProbe = probe }), "S0@u+ s0/S0=run", sawStarted("s", "s7/S0"), ""},
	{"a sidecar does not start", served(always, func(p *v1.Pod) { p.Spec.InitContainers[0].StartupProbe = brief }), "S0@u+ s0/S0=run", probed("s startup no"), "stop:s0/S0@5"},
	{"a sidecar is not alive", served(always, func(p *v1.Pod) { p.Spec.InitContainers[0].LivenessProbe = probe }),
		"S0@u+ a0/S0=run b0/S0=run t0/S0=run i0/S0=0 s0/S0=run", probed("s liveness no"), "stop:s0/S0"},

	{"all are restarted on request: sidecars last", served(always), "S0@u+ a0/S0=run b0/S0=run t0/S0=run i0/S0=0 s0/S0=run", asked("a0/S0", "b0/S0", "t0/S0", "s0/S0"),
		"stop:t0/S0<a0/S0+b0/S0 stop:s0/S0<a0/S0+b0/S0+t0/S0 stop:a0/S0 stop:b0/S0"},
	{"a sidecar is restarted on request", served(always), "S0@u+ a0/S0=run b0/S0=run t0/S0=run i0/S0=0 s0/S0=run", asked("s0/S0"), "stop:s0/S0<a0/S0+b0/S0+t0/S0"},
	{"a sidecar is restarted while initialising", served(always), "S0@u+ s0/S0=run i0/S0=run", asked("s0/S0"), "stop:s0/S0"},

	// All containers end, sidecars after the others, in the reverse order of their start.
	{"deleted", served(always, func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), "S0@u+ a0/S0=run b0/S0=0 t0/S0=run i0/S0=0 s0/S0=run F@u", none,
		"stop:a0/S0 stop:t0/S0<a0/S0 stop:s0/S0<a0/S0+t0/S0"},
	{"deleted, in a hurry", served(always, func(p *v1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{}, new(int64(3)) }),
		"S0@u+ a0/S0=run F@u", none, "stop:a0/S0@3"},
	{"deleted, stopped", served(always, func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), "S0@u+ a0/S0=0 F@u", none, "stop:S0"},
	{"deleted, its sandbox stopped", served(always, func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), "S0@u- a0/S0=0 F@u", none, "rm:a0/S0"},
	{"deleted, files left", served(always, func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), "S0@u- F@u", none, "forget:u"},
	{"deleted, all gone", served(always, func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), "", none, "gone"},
	{"not wanted, known of old", nil, "S0@u+ a0/S0=run s0/S0=run F@u", func(h *podsync.Have) {
		h.Accepted = map[string]*v1.Pod{"u": served(always)}
	}, "stop:a0/S0 stop:s0/S0<a0/S0"},
	{"not wanted, and unknown", nil, "S0@u+ a0/S0=run s0/S0=run F@u", func(h *podsync.Have) { h.Containers[0].Grace = 7 * time.Second }, "stop:a0/S0@7 stop:s0/S0"},

	// Probes of containers.
	{"kill and recreate unhealthy container", with(always, func(p *v1.Pod) { p.Spec.Containers[0].LivenessProbe = probe }), "S0@u+ a0/S0=run b0/S0=run", probed("a liveness no"), "stop:a0/S0"},
	{"… with the grace of its probe", with(always, func(p *v1.Pod) { p.Spec.Containers[0].LivenessProbe = brief }), "S0@u+ a0/S0=run b0/S0=run", probed("a liveness no"), "stop:a0/S0@5"},
	{"… that does not start", with(always, func(p *v1.Pod) { p.Spec.Containers[0].StartupProbe = brief }), "S0@u+ a0/S0=run b0/S0=run", probed("a startup no"), "stop:a0/S0@5"},
	{"… before others begin", with(always, func(p *v1.Pod) { p.Spec.Containers[0].LivenessProbe = probe }), "S0@u+ a0/S0=run b0/S0=1", probed("a liveness no"), "stop:a0/S0"},
	{"unhealthy, never restarted", with(never, func(p *v1.Pod) { p.Spec.Containers[0].LivenessProbe = probe }), "S0@u+ a0/S0=143 b0/S0=run", none, ""},
	{"killed by us the first time", with(always, func(*v1.Pod) {}), "S0@u+ a0/S0=137~0 b0/S0=run", killed("a0/S0"), "start:a1/S0^-0"},
	{"killed by us: the back-off ran while it did", with(always, func(*v1.Pod) {}), "S0@u+ a2/S0=137~0^10 a1/S0=1~25 b0/S0=run", killed("a2/S0"), "start:a3/S0^20"},
	{"killed by us too soon", with(always, func(*v1.Pod) {}), "S0@u+ a2/S0=137~0^10 a1/S0=1~12 b0/S0=run", killed("a2/S0"), "again:8"},

	{"the longest wait can be set", with(always, func(*v1.Pod) {}), "S0@u+ a4/S0=1~3^40 b0/S0=run", func(h *podsync.Have) { h.Containers[0].MaxBackoff = 15 * time.Second }, "again:12"},
	{"… to less than the first", with(always, func(*v1.Pod) {}), "S0@u+ a1/S0=1~3 b0/S0=run", func(h *podsync.Have) { h.Containers[0].MaxBackoff = 5 * time.Second }, "again:2"},
	{"ten minutes are forgiven", with(always, func(*v1.Pod) {}), "S0@u+ a4/S0=1~3^300 b0/S0=run", func(h *podsync.Have) {
		h.Containers[0].StartedAt = h.Containers[0].FinishedAt.Add(-10 * time.Minute)
	}, "start:a5/S0"},

	// Changes of a running pod.
	{"image changed", with(always, func(p *v1.Pod) { p.Spec.Containers[0].Image = "i:2" }), "S0@u+ a0/S0=run b0/S0=run", hashed, "stop:a0/S0"},
	{"image not changed", with(always, func(*v1.Pod) {}), "S0@u+ a0/S0=run b0/S0=run", hashed, ""},
	{"image changed, restarted at once", with(always, func(p *v1.Pod) { p.Spec.Containers[0].Image = "i:2" }), "S0@u+ a4/S0=143~0^80 b0/S0=run",
		func(h *podsync.Have) { hashed(h); killed("a4/S0")(h) }, "start:a5/S0^-0"},
	{"image changed while it crash loops", with(always, func(p *v1.Pod) { p.Spec.Containers[0].Image = "i:2" }), "S0@u+ a4/S0=1~3^80 b0/S0=run", hashed, "start:a5/S0^-0"},
	{"debug", with(always, debug("")), "S0@u+ a0/S0=run b0/S0=run", none, "start:d0/S0"},
	{"debug, of a container", with(always, debug("b")), "S0@u+ a0/S0=run b0/S0=run", none, "start:d0/S0>b0/S0"},
	{"debug, once", with(always, debug("")), "S0@u+ a0/S0=run b0/S0=run d0/S0=1", none, ""},
	{"debug, once, also when its container was removed", with(always, debug("")), "S0@u+ a0/S0=run b0/S0=run", hadDebug, ""},
	{"debug while initialising", served(always, debug("")), "S0@u+ s0/S0=run", none, "start:d0/S0 start:i0/S0"},
	{"resize", with(always, cpu("2")), "S0@u+ a0/S0=run b0/S0=run", actual("1"), "resize:S0"},
	{"resized", with(always, cpu("2")), "S0@u+ a0/S0=run b0/S0=run", actual("2000m"), ""},
	{"resize by a restart", with(always, func(p *v1.Pod) {
		cpu("2")(p)
		p.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceCPU, RestartPolicy: v1.RestartContainer}}
	}), "S0@u+ a0/S0=run b0/S0=run", actual("1"), "stop:a0/S0"},

	// The end of the pod as a whole.
	{"failed", with(always, func(*v1.Pod) {}), "S0@u+ a0/S0=run b0/S0=1", phase(v1.PodFailed), "stop:a0/S0"},
	{"failed, for a verdict in a hurry", with(always, func(*v1.Pod) {}), "S0@u+ a0/S0=run b0/S0=1", func(h *podsync.Have) {
		phase(v1.PodFailed)(h)
		h.Verdict = &podsync.Verdict{Reason: "Evicted", Grace: new(int64(1))}
	}, "stop:a0/S0@1"},
	{"failed, stopped", with(always, func(*v1.Pod) {}), "S0@u+ a0/S0=143 b0/S0=1", phase(v1.PodFailed), "stop:S0"},
	{"failed, kept", with(always, func(*v1.Pod) {}), "S0@u- a0/S0=143 b0/S0=1 F@u", phase(v1.PodFailed), ""},
	{"succeeded, after a reboot", with(onFailure, func(*v1.Pod) {}), "F@u", phase(v1.PodSucceeded), ""},
	{"deadline to come", with(always, func(p *v1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(100)) }), "S0@u+ a0/S0=run b0/S0=run", func(h *podsync.Have) {
		h.Status = &v1.PodStatus{Phase: v1.PodRunning, StartTime: &metav1.Time{Time: now.Add(-30 * time.Second)}}
	}, "again:70"},

	// Restart rules.
	{"rule: again", with(never, rule("In", 42)), "S0@u+ a0/S0=42 b0/S0=run", none, "start:a1/S0"},
	{"rule: of another code", with(never, rule("In", 42)), "S0@u+ a0/S0=1 b0/S0=run", none, ""},
	{"rule: not of this code", with(never, rule("NotIn", 42)), "S0@u+ a0/S0=42 b0/S0=run", none, ""},
	{"policy of its own", with(always, func(p *v1.Pod) { p.Spec.Containers[0].RestartPolicy = new(v1.ContainerRestartPolicyNever) }), "S0@u+ a0/S0=1 b0/S0=run", none, ""},
	{"… the other way", with(never, func(p *v1.Pod) { p.Spec.Containers[0].RestartPolicy = new(v1.ContainerRestartPolicyOnFailure) }), "S0@u+ a0/S0=1 b0/S0=0", none, "start:a1/S0"},

	// A new sandbox.
	{"purge init containers", served(always), "S0@u- a0/S0=1 t0/S0=143 i0/S0=0 s0/S0=143", none, "rm:t0/S0 rm:i0/S0 rm:s0/S0"},
	{"… and begin again", served(always), "S1@u+ S0@u- a0/S0=1", none, "start:s0/S1"},
	{"done containers need no sandbox", with(onFailure, func(*v1.Pod) {}), "S0@u- a0/S0=0 b0/S0=0", none, ""},
	{"a rule starts one again", with(never, rule("In", 42)), "S0@u- a0/S0=42 b0/S0=137", none, "run:S1/S0"},
	{"one is not done", with(onFailure, func(*v1.Pod) {}), "S0@u- a0/S0=0 b0/S0=1", none, "run:S1/S0"},

	// The runtime has lost its state, but the logs exist.
	{"restart count from the logs", with(always, func(*v1.Pod) {}), "S0@u+ b0/S0=run", func(h *podsync.Have) { h.Logs = map[string]uint32{"a": 3} }, "start:a3/S0^-0"},
}

func TestLife(t *testing.T) {
	for _, test := range lifeCases {
		t.Run(test.name, func(t *testing.T) {
			h := have(t, test.have)
			test.edit(&h)
			if got := long(podsync.Compute(test.want, h, now)); got != test.plan {
				t.Errorf("%s\n got %q\nwant %q", test.have, got, test.plan)
			}
		})
	}
}

func asked(ids ...string) func(*podsync.Have) {
	return func(h *podsync.Have) {
		h.Restart = map[string]*time.Duration{}
		for _, id := range ids {
			h.Restart[id] = nil
		}
	}
}

func killed(id string) func(*podsync.Have) {
	return func(h *podsync.Have) { h.Restarted = map[string]bool{id: true} }
}

// hashed sets the hash of the pod's first definition on all containers.
func hashed(h *podsync.Have) {
	for i := range h.Containers {
		h.Containers[i].Hash = podsync.Hash(&v1.Container{Name: h.Containers[i].Name})
	}
}

func debug(target string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		e := v1.EphemeralContainer{TargetContainerName: target}
		e.Name = "d"
		p.Spec.EphemeralContainers = []v1.EphemeralContainer{e}
	}
}

// hadDebug sets a status in which the container of debug has run.
func hadDebug(h *podsync.Have) {
	s := v1.ContainerStatus{Name: "d", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}}
	h.Status = &v1.PodStatus{EphemeralContainerStatuses: []v1.ContainerStatus{s}}
}

func cpu(limit string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse(limit)}
	}
}

func actual(limit string) func(*podsync.Have) {
	return func(h *podsync.Have) {
		h.Actual = map[string]v1.ResourceRequirements{"a": {Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse(limit)}}}
	}
}

func phase(p v1.PodPhase) func(*podsync.Have) {
	return func(h *podsync.Have) { h.Status = &v1.PodStatus{Phase: p} }
}

func rule(operator string, code int32) func(*v1.Pod) {
	return func(p *v1.Pod) { ruled(&p.Spec.Containers[0], operator, code) }
}

func ruled(c *v1.Container, operator string, code int32) {
	c.RestartPolicy = new(v1.ContainerRestartPolicyNever)
	c.RestartPolicyRules = []v1.ContainerRestartRule{{
		Action:    v1.ContainerRestartRuleActionRestart,
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOperator(operator), Values: []int32{code}},
	}}
}

// sawStarted sets a status in which a sidecar has started in the container with this ID.
func sawStarted(name, id string) func(*podsync.Have) {
	return func(h *podsync.Have) {
		h.Status = &v1.PodStatus{InitContainerStatuses: []v1.ContainerStatus{{Name: name, ContainerID: "crisp://" + id, Started: new(true)}}}
	}
}

// long formats a plan like plan does. For stops it adds a grace period other than 30 s ("@5") and
// the containers that must stop first ("<a0/S0+b0/S0"), for starts the target (">b0/S0").
func long(p podsync.Plan) string {
	extra := map[string]string{}
	for i := range p.Actions {
		a := &p.Actions[i]
		switch a.Verb {
		case podsync.StopContainer:
			if a.Grace != 30*time.Second {
				extra["stop:"+a.ID] += fmt.Sprintf("@%d", int(a.Grace.Seconds()))
			}
			if len(a.After) > 0 {
				extra["stop:"+a.ID] += "<" + strings.Join(a.After, "+")
			}
		case podsync.StartContainer:
			word := fmt.Sprintf("start:%s%d/%s", a.Name, a.Attempt, a.SandboxID)
			if a.Backoff < 0 {
				extra[word] += "^-0"
			}
			if a.Target != "" {
				extra[word] += ">" + a.Target
			}
		}
	}
	words := strings.Fields(plan(p))
	for i, word := range words {
		if slices.Contains(slices.Collect(maps.Keys(extra)), word) {
			words[i] += extra[word]
		}
	}
	for _, a := range p.Actions {
		if a.Verb == podsync.Resize {
			words = append(words, "resize:"+a.SandboxID)
		}
	}
	return strings.Join(words, " ")
}
