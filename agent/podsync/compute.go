package podsync

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Compute returns what to do next for the pod want, or, if want is nil, for
// getting rid of what is there.
func Compute(want *v1.Pod, have Have, now time.Time) Plan {
	p := planner{want: want, have: have, now: now}
	switch {
	case p.clearOthers():
	case want == nil:
		p.plan.Gone = true
	case p.finished():
		p.settle()
	case !p.sandboxReady():
	default:
		p.initialise()
	}
	p.collect()
	return p.plan
}

type planner struct {
	want *v1.Pod
	have Have
	now  time.Time
	plan Plan
}

// add plans an action unless its last failure forbids it for now.
func (p *planner) add(a Action) {
	if f, ok := p.have.Failures[a.Subject()]; ok && f.Until.After(p.now) {
		p.again(f.Until)
		return
	}
	p.plan.Actions = append(p.plan.Actions, a)
}

func (p *planner) again(at time.Time) {
	if p.plan.Again.IsZero() || at.Before(p.plan.Again) {
		p.plan.Again = at
	}
}

// clearOthers plans the end of every pod of this name with another UID and
// reports whether there is one: the wanted pod does not begin before the old one
// has ended, or both would hold the host ports and the volumes.
func (p *planner) clearOthers() bool {
	wanted := ""
	if p.want != nil {
		wanted = string(p.want.UID)
	}
	others := map[string]bool{}
	for _, sb := range p.have.Sandboxes {
		if sb.UID != wanted {
			others[sb.UID] = true
		}
	}
	for _, c := range p.have.Containers {
		if c.UID != wanted {
			others[c.UID] = true
		}
	}
	for _, uid := range p.have.Files {
		if uid != wanted {
			others[uid] = true
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(others)) {
		p.end(uid)
	}
	return len(others) > 0
}

// end plans the next stage of ending the pod uid: its containers stop, then its
// sandboxes, then the containers go, then the files, then the sandboxes. The
// sandbox goes last because it is what a restarted agent finds the rest by.
func (p *planner) end(uid string) {
	why := "pod is not wanted any more"
	if p.stopAll(uid, why) {
		return
	}
	if p.stopSandboxes(func(sb Sandbox) bool { return sb.UID == uid }, why) {
		return
	}
	left := false
	for _, c := range p.have.Containers {
		if c.UID == uid {
			left = true
			p.add(Action{Verb: RemoveContainer, ID: c.ID, UID: uid, Name: c.Name, Why: why})
		}
	}
	if left {
		return
	}
	if slices.Contains(p.have.Files, uid) {
		p.add(Action{Verb: ForgetFiles, UID: uid, Why: why})
		return
	}
	for _, sb := range p.have.Sandboxes {
		if sb.UID == uid {
			p.add(Action{Verb: RemoveSandbox, ID: sb.ID, UID: uid, Why: why})
		}
	}
}

// stopAll plans to stop every live container of the pod uid and reports whether
// there is one.
func (p *planner) stopAll(uid, why string) bool {
	live := false
	for _, c := range p.have.Containers {
		if c.UID == uid && alive(c) {
			live = true
			p.add(stop(c, why))
		}
	}
	return live
}

func (p *planner) stopSandboxes(which func(Sandbox) bool, why string) bool {
	found := false
	for _, sb := range p.have.Sandboxes {
		if sb.Ready && which(sb) {
			found = true
			p.add(Action{Verb: StopSandbox, ID: sb.ID, UID: sb.UID, Why: why})
		}
	}
	return found
}

// alive is also true of a container of unknown state: it must be stopped before
// another is started in its place.
func alive(c Container) bool { return c.State == Running || c.State == Unknown }

func stop(c Container, why string) Action {
	return Action{Verb: StopContainer, ID: c.ID, UID: c.UID, Name: c.Name, Grace: c.Grace, Why: why}
}

// finished reports whether all containers have ended and none is to start again.
func (p *planner) finished() bool {
	if p.want.Spec.RestartPolicy == v1.RestartPolicyAlways {
		return false
	}
	if p.want.Spec.RestartPolicy == v1.RestartPolicyNever && p.initFailed() {
		return true
	}
	for i := range p.want.Spec.Containers {
		c, ok := p.newest(p.want.Spec.Containers[i].Name)
		if !ok || c.State != Exited || p.restarts(c) {
			return false
		}
	}
	return true
}

// initFailed reports whether an init container has ended the pod, which only
// happens under the policy Never.
func (p *planner) initFailed() bool {
	for i := range p.want.Spec.InitContainers {
		c, ok := p.newest(p.want.Spec.InitContainers[i].Name)
		if ok && c.State == Exited && c.ExitCode != 0 {
			return true
		}
	}
	return false
}

// settle releases what a finished pod holds. Its containers stay, for their logs
// and exit codes.
func (p *planner) settle() {
	uid := string(p.want.UID)
	if !p.stopAll(uid, "pod has finished") {
		p.stopSandboxes(func(Sandbox) bool { return true }, "pod has finished")
	}
}

// sandboxReady reports whether the pod has the one sandbox it needs, and plans
// the next stage towards it if not.
func (p *planner) sandboxReady() bool {
	why := p.sandboxChanged()
	if why == "" {
		return true
	}
	uid := string(p.want.UID)
	if p.stopAll(uid, why) || p.stopSandboxes(func(Sandbox) bool { return true }, why) {
		return false
	}
	attempt := uint32(0)
	for _, sb := range p.have.Sandboxes {
		attempt = max(attempt, sb.Attempt+1)
	}
	p.add(Action{Verb: RunSandbox, UID: uid, Attempt: attempt, Why: why})
	return false
}

// sandboxChanged says why the pod needs a new sandbox; "" if it does not. The
// cases are the kubelet's.
func (p *planner) sandboxChanged() string {
	ready := 0
	for _, sb := range p.have.Sandboxes {
		if sb.Ready {
			ready++
		}
	}
	switch {
	case len(p.have.Sandboxes) == 0:
		return "pod has no sandbox"
	case ready > 1:
		return "pod has several ready sandboxes"
	}
	sb := p.have.Sandboxes[0]
	switch {
	case !sb.Ready:
		return "sandbox is not ready"
	case sb.HostNetwork != p.want.Spec.HostNetwork:
		return "sandbox is on the wrong network"
	case !sb.HostNetwork && len(sb.IPs) == 0:
		return "sandbox has no address"
	}
	return ""
}

// initialise plans the next init container, or, when all are done, the containers.
func (p *planner) initialise() {
	sandbox := p.have.Sandboxes[0].ID
	if !p.begun(sandbox) {
		for i := range p.want.Spec.InitContainers {
			name := p.want.Spec.InitContainers[i].Name
			c, ok := p.newest(name)
			if ok && c.SandboxID == sandbox && c.State == Exited && c.ExitCode == 0 {
				continue
			}
			p.converge(name, sandbox)
			return
		}
	}
	for i := range p.want.Spec.Containers {
		p.converge(p.want.Spec.Containers[i].Name, sandbox)
	}
}

// begun reports whether a container other than an init container was created in
// the sandbox: then initialising is over, even if an init container was removed.
func (p *planner) begun(sandbox string) bool {
	return slices.ContainsFunc(p.have.Containers, func(c Container) bool {
		return c.SandboxID == sandbox && slices.ContainsFunc(p.want.Spec.Containers, func(w v1.Container) bool { return w.Name == c.Name })
	})
}

// converge plans what brings the container of this name to life in the sandbox.
func (p *planner) converge(name, sandbox string) {
	start := Action{Verb: StartContainer, UID: string(p.want.UID), Name: name, SandboxID: sandbox, Why: "container is not there"}
	c, ok := p.newest(name)
	if !ok {
		p.add(start)
		return
	}
	switch c.State {
	case Running:
		return
	case Unknown:
		p.add(stop(c, "container is in an unknown state"))
		return
	case Created:
		// An agent died between create and start. Nothing ran in it, so it
		// is no restart: the attempt is used again.
		p.add(Action{Verb: RemoveContainer, ID: c.ID, UID: c.UID, Name: name, Why: "container was never started"})
		return
	}
	start.Attempt = c.Attempt + 1
	start.Why = "container has exited"
	if c.SandboxID != sandbox {
		if p.isInit(name) || p.restarts(c) {
			start.Why = "container is of an old sandbox"
			p.add(start) // it was our doing: no back-off
		}
		return
	}
	if !p.restarts(c) {
		return
	}
	start.Backoff = nextBackoff(c)
	if at := c.FinishedAt.Add(start.Backoff); at.After(p.now) {
		p.again(at)
		return
	}
	p.add(start)
}

func (p *planner) isInit(name string) bool {
	return slices.ContainsFunc(p.want.Spec.InitContainers, func(c v1.Container) bool { return c.Name == name })
}

// restarts reports whether the restart policy wants another run after c, which
// has exited. An init container that failed is run again unless the policy is
// Never; one that succeeded never comes here within its sandbox.
func (p *planner) restarts(c Container) bool {
	switch p.want.Spec.RestartPolicy {
	case v1.RestartPolicyNever:
		return false
	case v1.RestartPolicyOnFailure:
		return c.ExitCode != 0
	}
	return !p.isInit(c.Name) || c.ExitCode != 0
}

// newest returns the youngest container of the wanted pod with this name.
func (p *planner) newest(name string) (Container, bool) {
	for _, c := range p.have.Containers {
		if c.Name == name && c.UID == string(p.want.UID) {
			return c, true
		}
	}
	return Container{}, false
}

// collect plans the removal of what nobody will ask for again: of each container
// the newest and the one before it stay (its log is what "crisp logs -p" shows),
// and no dead sandbox without containers but the newest.
func (p *planner) collect() {
	if p.want == nil {
		return
	}
	kept := map[string]int{}
	used := map[string]bool{}
	for _, c := range p.have.Containers {
		if c.UID != string(p.want.UID) {
			continue
		}
		if kept[c.Name]++; kept[c.Name] > 2 && !alive(c) {
			p.add(Action{Verb: RemoveContainer, ID: c.ID, UID: c.UID, Name: c.Name, Why: "container is older than the last two"})
			continue
		}
		used[c.SandboxID] = true
	}
	for i, sb := range p.have.Sandboxes {
		if i > 0 && sb.UID == string(p.want.UID) && !sb.Ready && !used[sb.ID] {
			p.add(Action{Verb: RemoveSandbox, ID: sb.ID, UID: sb.UID, Why: "sandbox has no containers any more"})
		}
	}
}
