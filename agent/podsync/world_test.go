package podsync_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
)

// A world is a runtime with one pod, and the agent that works on it: it does the work of a worker,
// the probes and criruntime without goroutines and with its own clock. A violation of a rule panics
// with a value of type broken.
type world struct {
	rng     *rand.Rand
	pod     *v1.Pod
	uses    map[string]*program // by container
	passed  time.Duration       // since the start; the time of programs and timers
	skew    time.Duration       // error of the wall clock
	calm    bool                // no failures except those of the pod's programs
	history []string
	given   map[string]bool // fields of Have that were not zero

	// State of the runtime and the disk.
	sandboxes  []podsync.Sandbox   // newest first
	containers []podsync.Container // newest first
	exits      map[string]exit     // of running containers, by ID
	logs       map[string]uint32
	came       map[string]int // sandbox → number of init containers that have completed in it
	actual     map[string]v1.ResourceRequirements
	files      bool
	resources  bool
	stop       *podsync.Stop
	verdict    *podsync.Verdict
	saved      *v1.PodStatus
	serial     int

	// State in the agent's memory.
	since     time.Time
	failures  map[string]failure
	restarted map[string]bool
	restart   map[string]*time.Duration
	probes    map[string]podsync.Probes // by container ID
	followed  map[string]string         // container → ID
	seen      map[string]time.Duration  // when it was first followed, by container ID
}

// A program describes the behaviour of the container with one name.
type program struct {
	lasts     time.Duration // 0 means until it is stopped
	codes     []int32       // exit codes of successive instances; the last one repeats
	startup   time.Duration // time until the startup probe succeeds; negative means never
	unhealthy bool          // the liveness probe fails
	missing   bool          // its image is missing
	brokenRun bool          // its start fails
	runs      int
}

type exit struct {
	at   time.Duration
	code int32
}

type failure struct {
	podsync.Failure
	count int
}

// broken is a violated rule.
type broken string

func (w *world) breaks(format string, args ...any) { panic(broken(fmt.Sprintf(format, args...))) }

func (w *world) note(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf("%7.0fs  ", w.passed.Seconds())+fmt.Sprintf(format, args...))
}

func (w *world) now() time.Time { return now.Add(w.passed + w.skew) }

func (w *world) chance(oneIn int) bool { return w.rng.IntN(oneIn) == 0 }

// boot starts an agent; the memory of the previous one is lost.
func (w *world) boot() {
	w.since = w.now()
	w.failures, w.restarted = map[string]failure{}, map[string]bool{}
	w.restart = map[string]*time.Duration{}
	w.probes, w.followed, w.seen = map[string]podsync.Probes{}, map[string]string{}, map[string]time.Duration{}
}

func (w *world) observe() podsync.Have {
	h := podsync.Have{
		Sandboxes: slices.Clone(w.sandboxes), Containers: slices.Clone(w.containers),
		HasResources: w.resources, Logs: map[string]uint32{}, Actual: w.actual,
		Restarted: w.restarted, Restart: w.restart, Stop: w.stop, Verdict: w.verdict,
		Failures: map[string]podsync.Failure{}, Probes: w.probes,
	}
	if w.files {
		h.Files = []string{"u"}
	}
	for name, n := range w.logs {
		if _, ok := h.Newest("u", name); !ok {
			h.Logs[name] = n
		}
	}
	for subject, f := range w.failures {
		h.Failures[subject] = f.Failure
	}
	return h
}

// round is one pass of the worker's loop. It reports whether the agent has acted, and otherwise
// returns the plan with what it waits for.
func (w *world) round() (acted bool, plan podsync.Plan) {
	w.probe()
	h := w.observe()
	s := status.Of(w.pod, h, w.saved, status.Node{Runtime: "crisp", HostIPs: []string{"192.0.2.1"}}, w.now())
	w.checkStatus(w.saved, &s)
	w.saved, h.Status = &s, &s
	for field, v := range reflect.ValueOf(h).Fields() {
		if !v.IsZero() {
			w.given[field.Name] = true
		}
	}
	if w.stop != nil && !w.stop.On() && !h.Interrupts("u") {
		w.stop = nil // as worker.Stops do
	}
	plan = podsync.Compute(w.pod, h, w.now())
	w.checkPlan(plan)
	for _, a := range inOrder(plan.Actions) {
		if !w.calm && w.chance(40) {
			w.note("agent killed before %s %s%s", a.Verb, a.Name, a.ID)
			w.boot()
			return true, plan
		}
		w.act(a)
	}
	return len(plan.Actions) > 0, plan
}

// inOrder sorts stops so that each comes after those for which it waits.
func inOrder(list []podsync.Action) []podsync.Action {
	out := slices.Clone(list)
	slices.SortStableFunc(out, func(a, b podsync.Action) int { return len(a.After) - len(b.After) })
	return out
}

func (w *world) act(a podsync.Action) {
	w.note("%s %s%s%s", a.Verb, a.Name, a.ID, a.SandboxID)
	err := ""
	switch a.Verb {
	case podsync.StopContainer:
		err = w.stopContainer(a)
	case podsync.RemoveContainer:
		if a.Why == "RestartAllContainers" {
			clear(w.came)
		}
		w.containers = slices.DeleteFunc(w.containers, func(c podsync.Container) bool {
			if c.ID == a.ID && c.State == podsync.Running {
				w.breaks("%s is removed while it runs", c.ID)
			}
			return c.ID == a.ID
		})
	case podsync.StopSandbox:
		w.loseSandbox(a.ID)
	case podsync.RemoveSandbox:
		w.sandboxes = slices.DeleteFunc(w.sandboxes, func(sb podsync.Sandbox) bool { return sb.ID == a.ID })
	case podsync.ForgetFiles:
		w.files, w.resources = false, false
	case podsync.Release:
		w.resources = false
	case podsync.RunSandbox:
		err = w.runSandbox(a)
	case podsync.StartContainer:
		err = w.startContainer(a)
	case podsync.Resize:
		for c := range podsync.Containers(&w.pod.Spec) {
			w.actual[c.Name] = *c.Resources.DeepCopy()
		}
	}
	w.fails(a, err)
}

// fails records a failure as a worker does.
func (w *world) fails(a podsync.Action, reason string) {
	if reason == "" {
		delete(w.failures, a.Subject())
		return
	}
	w.note("… %s", reason)
	f := failure{count: w.failures[a.Subject()].count + 1}
	f.Reason, f.Message, f.At = reason, reason, w.now()
	wait := 10 * time.Second
	switch {
	case reason == "ErrImagePull":
		wait = min(wait<<min(f.count-1, 8), 300*time.Second)
	case reason == "RunContainerError", reason == "PostStartHookError", a.Verb == podsync.StopContainer:
		wait = time.Second
	}
	f.Until = f.At.Add(wait)
	w.failures[a.Subject()] = f
}

func (w *world) runSandbox(a podsync.Action) string {
	for _, sb := range w.sandboxes {
		if sb.Ready {
			w.breaks("a second sandbox is run")
		}
		if sb.Attempt == a.Attempt {
			w.breaks("a sandbox of attempt %d is there", a.Attempt)
		}
	}
	w.files, w.resources = true, true
	if !w.calm && w.chance(6) {
		return "FailedCreatePodSandBox"
	}
	w.serial++
	w.sandboxes = slices.Insert(w.sandboxes, 0, podsync.Sandbox{
		ID: fmt.Sprintf("S%d", w.serial), UID: "u", Attempt: a.Attempt, Ready: true, IPs: []string{"10.0.0.2"}, CreatedAt: w.now(),
	})
	return ""
}

func (w *world) startContainer(a podsync.Action) string {
	w.checkStart(a)
	p := w.uses[a.Name]
	switch {
	case p.missing:
		return "ErrImagePull"
	case !w.calm && w.chance(12):
		return [...]string{"ErrImagePull", "CreateContainerConfigError"}[w.rng.IntN(2)]
	}
	spec := podsync.ContainerOf(&w.pod.Spec, a.Name)
	w.serial++
	c := podsync.Container{
		ID: fmt.Sprintf("%s%d#%d", a.Name, a.Attempt, w.serial), UID: "u", SandboxID: a.SandboxID, Name: a.Name, Attempt: a.Attempt,
		State: podsync.Created, CreatedAt: w.now(), Image: spec.Image, Hash: podsync.Hash(spec), Grace: 30 * time.Second, Backoff: a.Backoff,
	}
	w.logs[a.Name] = max(w.logs[a.Name], a.Attempt+1)
	w.actual[a.Name] = *spec.Resources.DeepCopy()
	w.containers = slices.Insert(w.containers, 0, c)
	if !w.calm && w.chance(20) {
		w.note("agent killed before %s is started", c.ID)
		w.boot()
		return ""
	}
	got := &w.containers[0]
	if p.brokenRun || !w.calm && w.chance(20) {
		got.State, got.ExitCode, got.Reason, got.FinishedAt = podsync.Exited, 128, "StartError", w.now()
		return "RunContainerError"
	}
	got.State, got.StartedAt = podsync.Running, w.now()
	if p.lasts > 0 {
		w.exits[got.ID] = exit{w.passed + p.lasts, p.codes[min(p.runs, len(p.codes)-1)]}
	}
	p.runs++
	if spec.Lifecycle != nil && !w.calm && w.chance(4) {
		w.ends(got, 137, "Error")
		return "PostStartHookError"
	}
	return ""
}

func (w *world) stopContainer(a podsync.Action) string {
	if !w.calm && w.chance(15) {
		return "Failed"
	}
	for i := range w.containers {
		if c := &w.containers[i]; c.ID == a.ID && c.State != podsync.Exited {
			w.ends(c, [...]int32{0, 143, 137}[w.rng.IntN(3)], "")
		}
	}
	if a.Restart && (w.calm || !w.chance(8)) { // otherwise the agent was killed
		w.restarted[a.ID] = true
		delete(w.restart, a.ID)
	}
	return ""
}

func (w *world) ends(c *podsync.Container, code int32, reason string) {
	if reason == "" {
		reason = "Error"
		if code == 0 {
			reason = "Completed"
		}
	}
	w.note("%s ends with %d %s", c.ID, code, reason)
	c.State, c.ExitCode, c.Reason, c.FinishedAt = podsync.Exited, code, reason, w.now()
	delete(w.exits, c.ID)
}

// loseSandbox makes a sandbox not ready, and kills its containers.
func (w *world) loseSandbox(id string) {
	for i := range w.sandboxes {
		if w.sandboxes[i].ID == id {
			w.sandboxes[i].Ready = false
		}
	}
	for i := range w.containers {
		if c := &w.containers[i]; c.SandboxID == id && (c.State == podsync.Running || c.State == podsync.Unknown) {
			w.ends(c, 137, "")
		}
	}
}

// probe does the work of agent/probe, whose results are only in the agent's memory.
func (w *world) probe() {
	if w.saved == nil || podsync.Terminal(w.saved) {
		return
	}
	for c := range podsync.Lasting(&w.pod.Spec) {
		s := podsync.StatusOf(c.Name, w.saved.ContainerStatuses, w.saved.InitContainerStatuses)
		if s == nil || s.State.Running == nil {
			continue
		}
		id, p := podsync.RuntimeID(s.ContainerID), w.uses[c.Name]
		r := w.probes[id]
		if w.followed[c.Name] != id {
			first := w.followed[c.Name] == ""
			w.followed[c.Name], w.seen[id] = id, w.passed
			found := first && s.State.Running.StartedAt.Time.Before(w.since.Add(-10*time.Second))
			if !found && c.LivenessProbe != nil {
				r.Liveness = podsync.Success
			}
			if !found && c.ReadinessProbe != nil && !(first && s.Ready) {
				r.Readiness = podsync.Failing
			}
			if found && c.StartupProbe != nil && *s.Started {
				r.Startup = podsync.Success
			}
		}
		ran := max(w.now().Sub(s.State.Running.StartedAt.Time), w.passed-w.seen[id])
		switch {
		case !*s.Started && c.StartupProbe != nil && r.Startup == podsync.Unknowable:
			if p.startup < 0 && ran >= startupLimit {
				r.Startup = podsync.Failing
			} else if p.startup >= 0 && ran >= p.startup {
				r.Startup = podsync.Success
			}
		case *s.Started:
			if c.LivenessProbe != nil && (p.unhealthy && ran >= startupLimit || !w.calm && w.chance(30)) {
				r.Liveness = podsync.Failing
			}
			if c.ReadinessProbe != nil {
				r.Readiness = podsync.Success
			}
		}
		w.probes[id] = r
	}
}

// startupLimit is the time in which a container of the model must start.
const startupLimit = 8 * time.Second

// sleep lets time pass, during which programs may end.
func (w *world) sleep(d time.Duration) {
	w.passed += d
	for i := range w.containers {
		c := &w.containers[i]
		if e, ok := w.exits[c.ID]; ok && e.at <= w.passed {
			w.ends(c, e.code, "")
		}
	}
}

// nextExit returns the time until a program ends by itself, or its startup probe succeeds; 0 if
// neither will happen.
func (w *world) nextExit() (d time.Duration) {
	least := func(x time.Duration) {
		if d == 0 || x < d {
			d = max(x, time.Second)
		}
	}
	for _, e := range w.exits {
		least(e.at - w.passed)
	}
	for c := range podsync.Lasting(&w.pod.Spec) {
		s := podsync.StatusOf(c.Name, w.saved.ContainerStatuses, w.saved.InitContainerStatuses)
		if s == nil || s.State.Running == nil {
			continue
		}
		r := w.probes[podsync.RuntimeID(s.ContainerID)]
		if c.StartupProbe != nil && !*s.Started && r.Startup == podsync.Unknowable ||
			c.LivenessProbe != nil && *s.Started && w.uses[c.Name].unhealthy && r.Liveness != podsync.Failing {
			least(time.Second)
		}
	}
	return d
}

// jump changes the wall clock. Failures use the monotonic clock.
func (w *world) jump(by time.Duration) {
	w.note("clock set by %s", by)
	w.skew += by
	for subject, f := range w.failures {
		f.At, f.Until = f.At.Add(by), f.Until.Add(by)
		w.failures[subject] = f
	}
}
