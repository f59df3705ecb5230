package podsync_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
)

var (
	stuckPods = flag.Int("stuck.pods", 4000, "number of random pods of TestNoPodIsStuck; an eighth of it with -short")
	stuckSeed = flag.Uint64("stuck.seed", 0, "the only seed of TestNoPodIsStuck; 0: all")
)

// A pod goes through random events (exits, lost sandboxes, killed agents, clock changes). Once they
// stop, it must reach the state that its spec demands. On the way no container may run twice at
// once or out of order, and its status must always be valid in Kubernetes.
func TestNoPodIsStuck(t *testing.T) {
	if *stuckSeed != 0 {
		live(t, *stuckSeed)
		return
	}
	pods := *stuckPods
	if testing.Short() {
		pods /= 8
	}
	const chunks = 8
	var given [chunks]map[string]bool // fields of Have
	for i := range chunks {
		given[i] = map[string]bool{}
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			for seed := i + 1; seed <= pods && !t.Failed(); seed += chunks {
				maps.Copy(given[i], live(t, uint64(seed)))
			}
		})
	}
	t.Cleanup(func() { // when all chunks have run
		others := []string{"Ending", "Scarce", "Accepted", "Resizing", "Pending", "Update"} // TestLife and its like give these
		for field := range reflect.TypeFor[podsync.Have]().Fields() {
			is := slices.ContainsFunc(given[:], func(g map[string]bool) bool { return g[field.Name] })
			if !t.Failed() && is == slices.Contains(others, field.Name) {
				t.Errorf("Have.%s: given to a random pod: %v", field.Name, is)
			}
		}
	})
}

// live runs the pod of one seed, first with events and then without. It returns which fields of Have
// were not zero.
func live(t *testing.T, seed uint64) map[string]bool {
	t.Helper()
	w := newWorld(seed)
	defer func() {
		if r := recover(); r != nil {
			why, ok := r.(broken)
			if !ok {
				panic(r)
			}
			last := w.history[max(0, len(w.history)-40):]
			t.Errorf("seed %d (-stuck.seed=%d): %s\n%s\n%s", seed, seed, why, describe(w.pod), strings.Join(last, "\n"))
		}
	}()
	for range 10 + w.rng.IntN(30) {
		w.event()
		if !w.chance(4) {
			w.round()
		}
		if w.chance(2) {
			w.sleep(time.Duration(w.rng.IntN(20000)) * time.Millisecond)
		}
	}
	w.note("calm")
	w.calm = true
	w.settle()
	return w.given
}

// Limits for a pod without events.
const (
	mostActs = 60 // consecutive rounds with actions, without any passing of time
	mostNaps = 60 // waits of the agent, for a pod that never comes to rest
	mostWait = 310 * time.Second
)

// settle runs the pod until it is at rest, or has waited often enough for a back-off.
func (w *world) settle() {
	for range mostNaps {
		plan := w.untilQuiet()
		nap := w.nextExit()
		if !plan.Again.IsZero() {
			until := plan.Again.Sub(w.now())
			if until <= 0 {
				w.breaks("the agent waits for a time that has passed")
			}
			if until > mostWait && w.pod.Spec.ActiveDeadlineSeconds == nil {
				w.breaks("the agent waits for %s", until)
			}
			if nap == 0 || until < nap {
				nap = until
			}
		}
		if nap == 0 {
			w.checkRest(plan)
			return
		}
		w.sleep(nap)
	}
	w.checkBackoff()
}

// untilQuiet runs the agent until it has nothing to do, considering the probes' results of the last
// status, and returns its plan.
func (w *world) untilQuiet() podsync.Plan {
	quiet := 0
	for range mostActs {
		acted, plan := w.round()
		if quiet++; acted {
			quiet = 0
		}
		if quiet == 3 {
			return plan
		}
	}
	w.breaks("the agent acts without end")
	return podsync.Plan{}
}

// checkPlan checks the invariants of all plans.
func (w *world) checkPlan(p podsync.Plan) {
	starts := map[string]bool{}
	for _, a := range p.Actions {
		if a.Verb == podsync.StartContainer && starts[a.Name] {
			w.breaks("%s is started twice", a.Name)
		}
		starts[a.Name] = starts[a.Name] || a.Verb == podsync.StartContainer
		if a.Verb != podsync.StopContainer {
			continue
		}
		if isSidecar(w.pod, a.Name) && !a.Restart {
			for _, c := range w.containers {
				if c.State == podsync.Running && !isInit(w.pod, c.Name) && !isEphemeral(w.pod, c.Name) && !slices.Contains(a.After, c.ID) {
					w.breaks("sidecar %s is stopped without waiting for %s", a.ID, c.ID)
				}
			}
		}
	}
	if p.Gone && (len(w.sandboxes)+len(w.containers) > 0 || w.files) {
		w.breaks("gone, and something is left")
	}
}

// checkStart checks the invariants of all starts of containers.
func (w *world) checkStart(a podsync.Action) {
	if len(w.sandboxes) == 0 || w.sandboxes[0].ID != a.SandboxID || !w.sandboxes[0].Ready {
		w.breaks("%s is started in %s, which is not the pod's sandbox", a.Name, a.SandboxID)
	}
	switch {
	case w.pod.DeletionTimestamp != nil, w.verdict != nil, w.stop.On(), podsync.Terminal(w.saved):
		w.breaks("%s is started though the pod is over", a.Name)
	}
	var last *podsync.Container
	for i := range w.containers {
		c := &w.containers[i]
		if c.Name != a.Name {
			continue
		}
		if c.State != podsync.Exited {
			w.breaks("%s is started while %s is there", a.Name, c.ID)
		}
		if c.Attempt >= a.Attempt {
			w.breaks("%s is attempt %d, after %d", a.Name, a.Attempt, c.Attempt)
		}
		last = cmp.Or(last, c)
	}
	if isEphemeral(w.pod, a.Name) {
		if last != nil {
			w.breaks("ephemeral %s is started again", a.Name)
		}
		return
	}
	spec := podsync.ContainerOf(&w.pod.Spec, a.Name)
	if last != nil && !podsync.IsSidecar(spec) && !w.mayRestart(spec, last) {
		w.breaks("%s is started again after it has ended with %d", a.Name, last.ExitCode)
	}
	w.checkOrder(a)
}

// mayRestart reports, independently of podsync, whether a container that has ended may be
// restarted.
func (w *world) mayRestart(spec *v1.Container, last *podsync.Container) bool {
	if w.stop.Interrupted(last.StartedAt, last.FinishedAt) {
		return true
	}
	policy := string(w.pod.Spec.RestartPolicy)
	if spec.RestartPolicy != nil {
		policy = string(*spec.RestartPolicy)
		for _, r := range spec.RestartPolicyRules {
			in := slices.Contains(r.ExitCodes.Values, last.ExitCode)
			if in == (r.ExitCodes.Operator == v1.ContainerRestartRuleOnExitCodesOpIn) {
				return true
			}
		}
	}
	failed := last.ExitCode != 0 || isInit(w.pod, spec.Name) && last.Reason == "OOMKilled"
	return policy == "Always" || policy == "OnFailure" && failed
}

// checkOrder checks that init containers have ended, and sidecars have started, one after the other
// and before the containers. It is true once a container has existed in the sandbox.
func (w *world) checkOrder(a podsync.Action) {
	i := w.lastBefore(a.Name)
	if i+1 <= w.came[a.SandboxID] {
		return
	}
	w.came[a.SandboxID] = i + 1
	spec := &w.pod.Spec.InitContainers[i]
	found, _ := (&podsync.Have{Containers: w.containers}).Newest("u", spec.Name)
	s := podsync.StatusOf(spec.Name, w.saved.InitContainerStatuses)
	done := found.State == podsync.Exited && found.ExitCode == 0 && found.Reason != "OOMKilled"
	if podsync.IsSidecar(spec) {
		done = found.State == podsync.Running && *s.Started
	}
	if found.SandboxID != a.SandboxID || !done {
		w.breaks("%s is started before %s has done its part", a.Name, spec.Name)
	}
}

// lastBefore returns the index of the last init container before the one of this name.
func (w *world) lastBefore(name string) int {
	for i := range w.pod.Spec.InitContainers {
		if w.pod.Spec.InitContainers[i].Name == name {
			return i - 1
		}
	}
	return len(w.pod.Spec.InitContainers) - 1
}

func isInit(pod *v1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool { return c.Name == name })
}

func isSidecar(pod *v1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool { return c.Name == name && podsync.IsSidecar(&c) })
}

func isEphemeral(pod *v1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return c.Name == name })
}

// checkRest checks that a pod that waits for nothing is as its spec demands.
func (w *world) checkRest(plan podsync.Plan) {
	live := slices.ContainsFunc(w.containers, func(c podsync.Container) bool { return c.State != podsync.Exited && c.State != podsync.Created })
	ready := slices.ContainsFunc(w.sandboxes, func(sb podsync.Sandbox) bool { return sb.Ready })
	switch {
	case w.pod.DeletionTimestamp != nil:
		if !plan.Gone {
			w.breaks("at rest: the pod is deleted, and not gone")
		}
		return
	case podsync.Terminal(w.saved):
		if live || ready || w.resources {
			w.breaks("at rest: %s, and something runs or is held", w.saved.Phase)
		}
		return
	case w.stop.On():
		if live || ready {
			w.breaks("at rest: stopped on request, and something runs")
		}
		return
	}
	running := 0
	for c := range podsync.Lasting(&w.pod.Spec) {
		found, ok := (&podsync.Have{Containers: w.containers}).Newest("u", c.Name)
		switch {
		case ok && found.State == podsync.Running:
			if !isInit(w.pod, c.Name) {
				running++
			}
		case !ok, found.State != podsync.Exited, isInit(w.pod, c.Name), w.mayRestart(c, &found):
			w.breaks("at rest: %s does not run; the pod is %s", c.Name, w.saved.Phase)
		}
	}
	if running == 0 {
		w.breaks("at rest: all containers are done, and the pod is %s", w.saved.Phase)
	}
	if w.saved.Phase != v1.PodRunning {
		w.breaks("at rest: the pod runs, and is %s", w.saved.Phase)
	}
}

// checkBackoff checks that a pod that does not come to rest has containers that repeatedly end, or
// cannot start.
func (w *world) checkBackoff() {
	waits := []string{"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "RunContainerError"}
	for _, list := range [][]v1.ContainerStatus{w.saved.InitContainerStatuses, w.saved.ContainerStatuses} {
		for _, s := range list {
			if s.RestartCount > 0 || s.State.Waiting != nil && slices.Contains(waits, s.State.Waiting.Reason) {
				return
			}
		}
	}
	w.breaks("never at rest, without a container that ends again and again: %s", w.saved.Phase)
}
