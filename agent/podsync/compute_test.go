package podsync_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

var now = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// pod returns a wanted pod with the UID "u", the containers a and b, and init containers.
func pod(policy v1.RestartPolicy, init ...string) *v1.Pod {
	p := &v1.Pod{}
	p.Name, p.Namespace, p.UID = "web", "default", types.UID("u")
	p.Spec.RestartPolicy = policy
	for _, name := range init {
		p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Name: name})
	}
	p.Spec.Containers = []v1.Container{{Name: "a"}, {Name: "b"}}
	return p
}

// have parses existing objects from text, newest first, one object per word:
//
//	S1@u+      sandbox 1 of the pod u, ready; S1@u- not ready; + alone is "@u+"
//	a0/S1=run  container a, attempt 0, in sandbox 1, running
//	a0/S1=0    … exited with code 0, 60 s ago; "=0~5" 5 s ago; "=0~5^40" after a back-off of 40 s
//	a0/S1=new  … created; "=?" unknown
//	F@u        files of the pod u
func have(t *testing.T, text string) podsync.Have {
	t.Helper()
	var h podsync.Have
	uids := map[string]string{}
	for _, word := range slices.Backward(strings.Fields(text)) { // a sandbox may come before or after its containers
		if strings.HasPrefix(word, "S") {
			id, rest, _ := strings.Cut(word, "@")
			uids[id] = strings.TrimRight(rest, "+-!h")
		}
	}
	for _, word := range strings.Fields(text) {
		switch {
		case strings.HasPrefix(word, "S"):
			id, rest, _ := strings.Cut(word, "@")
			sb := podsync.Sandbox{ID: id, UID: uids[id], Ready: strings.Contains(rest, "+"), HostNetwork: strings.Contains(rest, "h")}
			fmt.Sscanf(id, "S%d", &sb.Attempt)
			if !strings.Contains(rest, "!") {
				sb.IPs = []string{"10.0.0.2"}
			}
			h.Sandboxes = append(h.Sandboxes, sb)
		case strings.HasPrefix(word, "F@"):
			h.Files = append(h.Files, word[2:])
		default:
			h.Containers = append(h.Containers, container(t, word, uids))
		}
	}
	return h
}

func container(t *testing.T, word string, uids map[string]string) podsync.Container {
	t.Helper()
	id, state, ok := strings.Cut(word, "=")
	name, sandbox, in := strings.Cut(id, "/")
	if !ok || !in {
		t.Fatalf("bad word %q", word)
	}
	c := podsync.Container{ID: id, Name: strings.TrimRight(name, "0123456789"), SandboxID: sandbox, UID: uids[sandbox], Grace: 30 * time.Second}
	fmt.Sscanf(strings.TrimPrefix(name, c.Name), "%d", &c.Attempt)
	switch state {
	case "run":
		c.State = podsync.Running
	case "new":
		c.State = podsync.Created
	case "?":
		c.State = podsync.Unknown
	default:
		c.State = podsync.Exited
		ago, backoff := 60, 0
		state, rest, _ := strings.Cut(state, "~")
		fmt.Sscanf(state, "%d", &c.ExitCode)
		fmt.Sscanf(rest, "%d^%d", &ago, &backoff)
		c.FinishedAt = now.Add(-time.Duration(ago) * time.Second)
		c.StartedAt = c.FinishedAt.Add(-time.Second)
		c.Backoff = time.Duration(backoff) * time.Second
	}
	return c
}

// plan formats a plan as text.
func plan(p podsync.Plan) string {
	var words []string
	for _, a := range p.Actions {
		switch a.Verb {
		case podsync.StopContainer:
			words = append(words, "stop:"+a.ID)
		case podsync.RemoveContainer:
			words = append(words, "rm:"+a.ID)
		case podsync.StopSandbox:
			words = append(words, "stop:"+a.ID)
		case podsync.RemoveSandbox:
			words = append(words, "rm:"+a.ID)
		case podsync.ForgetFiles:
			words = append(words, "forget:"+a.UID)
		case podsync.Release:
			words = append(words, "release:"+a.UID)
		case podsync.RunSandbox:
			word := fmt.Sprintf("run:S%d", a.Attempt)
			if a.ID != "" {
				word += "/" + a.ID
			}
			words = append(words, word)
		case podsync.StartContainer:
			word := fmt.Sprintf("start:%s%d/%s", a.Name, a.Attempt, a.SandboxID)
			if a.Backoff > 0 {
				word += fmt.Sprintf("^%d", int(a.Backoff.Seconds()))
			}
			words = append(words, word)
		}
	}
	if !p.Again.IsZero() {
		words = append(words, fmt.Sprintf("again:%d", int(p.Again.Sub(now).Seconds())))
	}
	if p.Gone {
		words = append(words, "gone")
	}
	return strings.Join(words, " ")
}

func TestCompute(t *testing.T) {
	for _, test := range []struct {
		name string
		want *v1.Pod
		have string
		plan string
	}{
		// A pod starts.
		{"nothing there", pod(always), "", "run:S0"},
		{"sandbox is ready", pod(always), "S0@u+", "start:a0/S0 start:b0/S0"},
		{"one container runs", pod(always), "S0@u+ a0/S0=run", "start:b0/S0"},
		{"all run", pod(always), "S0@u+ a0/S0=run b0/S0=run F@u", ""},

		// Init containers, one after the other.
		{"first init container", pod(always, "i", "j"), "S0@u+", "start:i0/S0"},
		{"init container runs", pod(always, "i", "j"), "S0@u+ i0/S0=run", ""},
		{"second init container", pod(always, "i", "j"), "S0@u+ i0/S0=0", "start:j0/S0"},
		{"init is over", pod(always, "i"), "S0@u+ i0/S0=0", "start:a0/S0 start:b0/S0"},
		{"init failed", pod(always, "i"), "S0@u+ i0/S0=1", "start:i1/S0"},
		{"init failed again", pod(always, "i"), "S0@u+ i1/S0=1~4", "again:6"},
		{"init failed for good", pod(never, "i"), "S0@u+ i0/S0=1", "stop:S0"},
		{"init container was removed since", pod(always, "i"), "S0@u+ a0/S0=run b0/S0=run", ""},
		{"init runs again in a new sandbox", pod(always, "i"), "S1@u+ S0@u- i0/S0=0 a0/S0=137 b0/S0=137", "start:i1/S1"},

		// Ended containers.
		{"first restart is at once", pod(always), "S0@u+ a0/S0=0~0 b0/S0=run", "start:a1/S0"},
		{"second waits", pod(always), "S0@u+ a1/S0=1~3 b0/S0=run", "again:7"},
		{"second after its wait", pod(always), "S0@u+ a1/S0=1~10 b0/S0=run", "start:a2/S0^10"},
		{"the wait doubles", pod(always), "S0@u+ a4/S0=1~79^40 b0/S0=run", "again:1"},
		{"the wait has a limit", pod(always), "S0@u+ a9/S0=1~299^300 b0/S0=run", "again:1"},
		{"one waits, the other starts", pod(always), "S0@u+ a1/S0=1~3", "start:b0/S0 again:7"},
		{"success is not restarted on failure", pod(onFailure), "S0@u+ a0/S0=0 b0/S0=run", ""},
		{"failure is", pod(onFailure), "S0@u+ a0/S0=3 b0/S0=run", "start:a1/S0"},
		{"never restarted", pod(never), "S0@u+ a0/S0=3 b0/S0=run", ""},
		{"a finished pod lets go of its address", pod(never), "S0@u+ a0/S0=3 b0/S0=0", "stop:S0"},
		{"and then rests", pod(never), "S0@u- a0/S0=3 b0/S0=0", ""},
		{"finished on failure", pod(onFailure), "S0@u- a0/S0=0 b0/S0=0", ""},
		{"created and never started", pod(always), "S0@u+ a0/S0=new b0/S0=run", "rm:a0/S0"},
		{"created after its removal", pod(always), "S0@u+ b0/S0=run", "start:a0/S0"},
		{"unknown state", pod(always), "S0@u+ a0/S0=? b0/S0=run", "stop:a0/S0"},

		// The sandbox is lost.
		{"sandbox is gone: stop what runs", pod(always), "S0@u- a0/S0=run b0/S0=1", "stop:a0/S0"},
		{"sandbox is gone: a new one", pod(always), "S0@u- a0/S0=137 b0/S0=1", "run:S1/S0"},
		{"new sandbox, new containers, no back-off", pod(always), "S1@u+ S0@u- a3/S0=137~1^40 b0/S0=1~1", "start:a4/S1^40 start:b1/S1"},
		{"never restarted in a new sandbox", pod(never), "S0@u- a0/S0=137 b0/S0=137", ""},
		{"but what has never begun begins", pod(never), "S0@u- a0/S0=137", "run:S1/S0"},
		{"the init container is done", pod(never, "i"), "S0@u- i0/S0=0", "rm:i0/S0"},
		{"two ready sandboxes", pod(always), "S1@u+ S0@u+", "stop:S1 stop:S0"},
		{"no address", pod(always), "S0@u+!", "stop:S0"},
		{"wrong network", pod(always), "S0@u+h!", "stop:S0"},
		{"reboot", pod(always), "S0@u- a0/S0=255 b0/S0=255 F@u", "run:S1/S0"},

		// An old pod of the same name is in the way.
		{"old pod runs", pod(always), "S0@old+ a0/S0=run b0/S0=run", "stop:a0/S0 stop:b0/S0"},
		{"old pod's sandbox", pod(always), "S0@old+ a0/S0=0", "stop:S0"},
		{"old pod's containers", pod(always), "S0@old- a0/S0=0 F@old", "rm:a0/S0"},
		{"old pod's files", pod(always), "S0@old- F@old", "forget:old"},
		{"old pod's last", pod(always), "S0@old-", "rm:S0"},
		{"only files of an old pod", pod(always), "F@old F@u", "forget:old"},

		// An unwanted pod.
		{"unwanted", nil, "S0@u+ a0/S0=run b0/S0=0", "stop:a0/S0"},
		{"unwanted, never started", nil, "S0@u+ a0/S0=new", "stop:S0"},
		{"unwanted, stopped", nil, "S0@u- a0/S0=0 b0/S0=0 F@u", "rm:a0/S0 rm:b0/S0"},
		{"unwanted, two attempts", nil, "S1@u- S0@u-", "rm:S1 rm:S0"},
		{"gone", nil, "", "gone"},

		// Removal of old containers.
		{"three runs", pod(always), "S0@u+ a2/S0=run a1/S0=1 a0/S0=1 b0/S0=run", "rm:a0/S0"},
		{"old sandbox with containers", pod(always), "S1@u+ a1/S1=run b1/S1=run S0@u- a0/S0=1", ""},
		{"old sandbox without", pod(always), "S1@u+ a1/S1=run b1/S1=run S0@u-", "rm:S0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := plan(podsync.Compute(test.want, have(t, test.have), now)); got != test.plan {
				t.Errorf("%s\n got %q\nwant %q", test.have, got, test.plan)
			}
		})
	}
}

// A clock that was set back does not delay a restart until it has caught up.
func TestClockSetBack(t *testing.T) {
	for world, want := range map[string]string{
		"S0@u+ a0/S0=1~-7200 b0/S0=run": "start:a1/S0",
		"S0@u+ a1/S0=1~-7200 b0/S0=run": "start:a2/S0^10",
	} {
		if got := plan(podsync.Compute(pod(v1.RestartPolicyAlways), have(t, world), now)); got != want {
			t.Errorf("%s: got %q, want %q", world, got, want)
		}
	}
}

// A pod that is wanted again while it is ending first ends completely. It neither continues nor
// fails.
func TestWantedAgain(t *testing.T) {
	for _, step := range []struct{ have, plan string }{
		{"S0@u+ a0/S0=run b0/S0=137 F@u", "stop:a0/S0"},
		{"S0@u+ a0/S0=137 b0/S0=137 F@u", "stop:S0"},
		{"S0@u- a0/S0=137 b0/S0=137 F@u", "rm:a0/S0 rm:b0/S0"},
		{"S0@u- F@u", "forget:u"},
		{"S0@u-", "run:S1/S0"},
		{"", "run:S0"},
	} {
		h := have(t, step.have)
		h.Ending, h.Verdict = h.Files, &podsync.Verdict{Rejected: true}
		if got := plan(podsync.Compute(pod(v1.RestartPolicyNever), h, now)); got != step.plan {
			t.Errorf("%s: got %q, want %q", step.have, got, step.plan)
		}
	}
}

// A finished pod releases what only a running pod needs, once all its containers have
// stopped. Its dead containers are removed when disk space is short, and so are the former
// containers of running pods.
func TestFinished(t *testing.T) {
	for _, test := range []struct {
		have  string
		phase v1.PodPhase
		rare  bool
		plan  string
	}{
		{"S0@u+ a0/S0=run b0/S0=1", v1.PodFailed, true, "stop:a0/S0 rm:b0/S0"},
		{"S0@u+ a0/S0=0 b0/S0=0", v1.PodSucceeded, false, "stop:S0"},
		{"S0@u- a0/S0=0 b0/S0=0", v1.PodSucceeded, false, "release:u"},
		{"S0@u- a0/S0=0 b0/S0=0", v1.PodSucceeded, true, "release:u rm:a0/S0 rm:b0/S0"},
		{"S0@u- a0/S0=0 b0/S0=0", v1.PodRunning, false, ""},
		{"S0@u+ a2/S0=run a1/S0=1 b0/S0=run", v1.PodRunning, true, "rm:a1/S0"},
		{"S0@u+ a1/S0=1~3 a0/S0=1 b0/S0=run", v1.PodRunning, true, "rm:a0/S0 again:7"},
	} {
		h := have(t, test.have)
		h.HasResources, h.Scarce, h.Status = true, test.rare, &v1.PodStatus{Phase: test.phase}
		policy := v1.RestartPolicyNever
		if test.phase == v1.PodRunning && test.rare {
			policy = v1.RestartPolicyAlways
		}
		if got := plan(podsync.Compute(pod(policy), h, now)); got != test.plan {
			t.Errorf("%s, %s, scarce %v: got %q, want %q", test.have, test.phase, test.rare, got, test.plan)
		}
	}
}

// The log of a removed container is removed, except those of the last two instances, or of the last
// one while disk space is short. A container that is removed to be created again keeps its log, by
// which its attempts are counted.
func TestLogsGoWithTheirRuns(t *testing.T) {
	for _, test := range []struct {
		have   string
		scarce bool
		logs   int
	}{
		{"S0@u+ a2/S0=run a1/S0=1 a0/S0=1 b0/S0=run", false, 2},
		{"S0@u+ a2/S0=run a1/S0=1 b0/S0=run", true, 1},
		{"S0@u+ a0/S0=new b0/S0=run", false, 0},
		{"S0@u- i3/S0=1 a2/S0=1", false, 2},
	} {
		h := have(t, test.have)
		h.Scarce = test.scarce
		removed := 0
		for _, a := range podsync.Compute(pod(v1.RestartPolicyAlways, "i"), h, now).Actions {
			if a.Verb == podsync.RemoveContainer {
				removed++
				if a.Logs != test.logs {
					t.Errorf("%s: %s keeps the logs of %d runs, want %d", test.have, a.Name, a.Logs, test.logs)
				}
			}
		}
		if removed == 0 {
			t.Errorf("%s: nothing is removed", test.have)
		}
	}
}

// Only the failed action is delayed.
func TestFailuresHoldBack(t *testing.T) {
	h := have(t, "S0@u+")
	h.Failures = map[string]podsync.Failure{podsync.ContainerSubject("a"): {Reason: "ErrImagePull", Until: now.Add(20 * time.Second)}}
	if got, want := plan(podsync.Compute(pod(v1.RestartPolicyAlways), h, now)), "start:b0/S0 again:20"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := plan(podsync.Compute(pod(v1.RestartPolicyAlways), h, now.Add(20*time.Second))), "start:a0/S0 start:b0/S0"; got != want {
		t.Errorf("afterwards got %q, want %q", got, want)
	}
}

// From any initial state, executing the plans leads to the wanted pod: no plan may undo the
// previous one.
func TestComputeConverges(t *testing.T) {
	worlds := []string{
		"", "S0@u+", "S0@u-", "S1@u+ S0@u+ a0/S0=run", "S0@u+! a0/S0=run", "S0@u+ a0/S0=? b0/S0=new",
		"S0@old+ a0/S0=run F@old", "S1@u- a1/S1=1 S0@old- b0/S0=run F@u F@old", "S0@u+ a3/S0=run a2/S0=1 a1/S0=1 a0/S0=1",
		"S0@u+ i0/S0=1", "S0@u+ i0/S0=new", "S0@u+ i0/S0=run a0/S0=run",
	}
	for _, world := range worlds {
		for _, want := range []*v1.Pod{nil, pod(v1.RestartPolicyAlways), pod(v1.RestartPolicyAlways, "i")} {
			h := have(t, world)
			at := now
			var steps []string
			for range 40 {
				p := podsync.Compute(want, h, at)
				steps = append(steps, plan(p))
				if len(p.Actions) == 0 && p.Again.IsZero() {
					break
				}
				at = at.Add(time.Second)
				if p.Again.After(at) {
					at = p.Again
				}
				for _, a := range p.Actions {
					apply(&h, a, at)
				}
				finishInit(&h, at)
			}
			last := podsync.Compute(want, h, at)
			if len(last.Actions) > 0 || last.Gone != (want == nil) {
				t.Errorf("%q does not come to rest:\n%s", world, strings.Join(steps, "\n"))
			}
			if want == nil && len(h.Sandboxes)+len(h.Containers)+len(h.Files) > 0 {
				t.Errorf("%q leaves %+v", world, h)
			}
			if want != nil && running(h) != "a b" {
				t.Errorf("%q ends with %q running:\n%s", world, running(h), strings.Join(steps, "\n"))
			}
		}
	}
}

// apply executes an action in a world without failures.
func apply(h *podsync.Have, a podsync.Action, at time.Time) {
	switch a.Verb {
	case podsync.StopContainer:
		for i := range h.Containers {
			if h.Containers[i].ID == a.ID {
				h.Containers[i].State, h.Containers[i].ExitCode, h.Containers[i].FinishedAt = podsync.Exited, 143, at
			}
		}
	case podsync.RemoveContainer:
		h.Containers = slices.DeleteFunc(h.Containers, func(c podsync.Container) bool { return c.ID == a.ID })
	case podsync.StopSandbox:
		for i := range h.Sandboxes {
			if h.Sandboxes[i].ID == a.ID {
				h.Sandboxes[i].Ready = false
			}
		}
	case podsync.RemoveSandbox:
		h.Sandboxes = slices.DeleteFunc(h.Sandboxes, func(sb podsync.Sandbox) bool { return sb.ID == a.ID })
	case podsync.ForgetFiles:
		h.Files = slices.DeleteFunc(h.Files, func(uid string) bool { return uid == a.UID })
	case podsync.RunSandbox:
		sb := podsync.Sandbox{ID: fmt.Sprintf("%s-%d", a.UID, a.Attempt), UID: a.UID, Attempt: a.Attempt, Ready: true, IPs: []string{"10.0.0.3"}}
		h.Sandboxes = append([]podsync.Sandbox{sb}, h.Sandboxes...)
	case podsync.StartContainer:
		c := podsync.Container{ID: fmt.Sprintf("%s%d", a.Name, a.Attempt), UID: a.UID, SandboxID: a.SandboxID, Name: a.Name, Attempt: a.Attempt, State: podsync.Running, StartedAt: at, Backoff: a.Backoff}
		h.Containers = append([]podsync.Container{c}, h.Containers...)
	}
}

// finishInit makes init containers succeed.
func finishInit(h *podsync.Have, at time.Time) {
	for i := range h.Containers {
		if c := &h.Containers[i]; c.Name == "i" && c.State == podsync.Running {
			c.State, c.FinishedAt = podsync.Exited, at
		}
	}
}

func running(h podsync.Have) string {
	var names []string
	for _, c := range h.Containers {
		if c.State == podsync.Running {
			names = append(names, c.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}
