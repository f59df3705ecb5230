package podsync

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// converge plans for the containers of a pod whose sandbox is ready. If containers must be
// stopped, the plan has only that.
func (p *planner) converge() {
	sandbox := p.have.Sandboxes[0].ID
	p.ephemeral(sandbox)
	ready := p.initial(sandbox)
	if ready {
		p.regular(sandbox)
		p.kill = p.keep == 0 && p.starts == 0 && p.kills == 0
	}
	switch {
	case p.kill:
		p.plan = Plan{} // drops planned starts of sidecars too
		p.settle()
	case p.kills > 0:
		p.plan.Actions = slices.DeleteFunc(p.plan.Actions, func(a Action) bool { return a.Verb != StopContainer })
	case p.resized || p.have.Resizing && p.keep > 0:
		p.add(Action{Verb: Resize, UID: string(p.want.UID), SandboxID: sandbox, Why: "resources have changed"})
	}
}

// ephemeral plans the start of ephemeral containers. Each is started once, even before the
// pod is initialised: if it has been removed, the status still shows that it ran.
func (p *planner) ephemeral(sandbox string) {
	for i := range p.want.Spec.EphemeralContainers {
		e := &p.want.Spec.EphemeralContainers[i]
		if _, ok := p.newest(e.Name); ok || p.had(e.Name) {
			continue
		}
		a := Action{Verb: StartContainer, UID: string(p.want.UID), Name: e.Name, SandboxID: sandbox, Why: "container is not there"}
		if target, ok := p.newest(e.TargetContainerName); ok {
			a.Target = target.ID
		}
		p.add(a)
	}
}

func (p *planner) had(name string) bool {
	if p.have.Status == nil {
		return false
	}
	s := StatusOf(name, p.have.Status.EphemeralContainerStatuses)
	return s != nil && (s.State.Running != nil || s.State.Terminated != nil)
}

func (p *planner) regular(sandbox string) {
	for i := range p.want.Spec.Containers {
		c := &p.want.Spec.Containers[i]
		found, ok := p.newest(c.Name)
		if !ok || found.State != Running {
			if ok && found.State == Exited && !Restarts(&p.want.Spec, c, found.ExitCode) && !p.have.interrupted(found) {
				continue
			}
			p.starts++
			p.start(c, sandbox)
			continue
		}
		probes := p.have.Probes[found.ID]
		switch {
		case p.asked(c, found):
		case changed(c, found):
			p.killOne(found, nil, "Container "+c.Name+" definition changed, will be restarted")
		case c.LivenessProbe != nil && probes.Liveness == Failing:
			p.killOne(found, c.LivenessProbe, "Container "+c.Name+" failed liveness probe"+p.fate(c))
		case c.StartupProbe != nil && probes.Startup == Failing:
			p.killOne(found, c.StartupProbe, "Container "+c.Name+" failed startup probe"+p.fate(c))
		default:
			p.resize(c, found)
			p.keep++
		}
	}
}

func (p *planner) fate(c *v1.Container) string {
	if restartsAtAll(&p.want.Spec, c) {
		return ", will be restarted"
	}
	return ""
}

func changed(c *v1.Container, found Container) bool {
	return found.Hash != "" && found.Hash != Hash(c)
}

func (p *planner) killOne(found Container, probe *v1.Probe, why string) {
	p.kills++
	p.add(Action{Verb: StopContainer, ID: found.ID, UID: found.UID, Name: found.Name, Grace: p.grace(found, probe), Restart: true, Why: why})
}

// asked plans to stop a container that must restart on request, and reports whether it must. A
// sidecar stops after the containers that it serves, if these must restart too.
func (p *planner) asked(c *v1.Container, found Container) bool {
	grace, asked := p.have.Restart[found.ID]
	if !asked {
		return false
	}
	a := p.stop(found, "Container "+c.Name+" is to be restarted on request"+p.fate(c))
	if a.Restart = true; grace != nil {
		a.Grace = *grace
	}
	a.After = p.before(p.want, found)
	p.kills++
	p.add(a)
	return true
}

func (p *planner) start(c *v1.Container, sandbox string) {
	a := Action{Verb: StartContainer, UID: string(p.want.UID), Name: c.Name, SandboxID: sandbox, Why: "container is not there"}
	found, ok := p.newest(c.Name)
	if !ok {
		if a.Attempt = p.have.Logs[c.Name]; a.Attempt > 0 {
			a.Backoff = resetBackoff
		}
		p.add(a)
		return
	}
	switch found.State {
	case Unknown:
		p.killOne(found, nil, "container is in an unknown state")
		return
	case Created:
		// An agent was killed between create and start. The container never ran, so this is not
		// a restart and uses the same attempt again.
		p.add(Action{Verb: RemoveContainer, ID: found.ID, UID: found.UID, Name: c.Name, Why: "container was never started"})
		return
	}
	a.Attempt = found.Attempt + 1
	a.Why = "container has exited"
	if found.SandboxID != sandbox {
		a.Why, a.Backoff = "container is of an old sandbox", found.Backoff
		if found.Attempt == 0 {
			a.Backoff = resetBackoff
		}
		p.add(a) // the agent stopped the container: no back-off
		return
	}
	at, wait := p.have.RestartAt(c, found, p.now)
	a.Backoff = wait
	if at.After(p.now) {
		p.again(at)
		return
	}
	p.add(a)
}

// resize plans a resize for a container whose resources are not those of its spec, or its
// restart if its resizePolicy asks for one.
func (p *planner) resize(c *v1.Container, found Container) {
	actual, known := p.have.Actual[c.Name]
	if !known {
		return
	}
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		if SameResource(name, c.Resources, actual) {
			continue
		}
		i := slices.IndexFunc(c.ResizePolicy, func(r v1.ContainerResizePolicy) bool { return r.ResourceName == name })
		if i >= 0 && c.ResizePolicy[i].RestartPolicy == v1.RestartContainer {
			p.killOne(found, nil, "Container "+c.Name+" resize requires restart")
			return
		}
		p.resized = true
	}
}

func SameResources(a, b v1.ResourceRequirements) bool {
	return SameResource(v1.ResourceCPU, a, b) && SameResource(v1.ResourceMemory, a, b)
}

// SameResource reports whether both have the same limit and request of a resource, in the
// precision of the runtime: CPU in thousandths, memory in bytes.
func SameResource(name v1.ResourceName, a, b v1.ResourceRequirements) bool {
	amount := func(list v1.ResourceList) int64 {
		q := list[name]
		if name == v1.ResourceCPU {
			return q.ScaledValue(resource.Milli)
		}
		return q.Value()
	}
	return amount(a.Limits) == amount(b.Limits) && amount(a.Requests) == amount(b.Requests)
}

// initial plans for the init containers and sidecars and reports whether the pod is initialised.
// It goes from the last to the first: the last one that was started shows the pod's progress,
// even if earlier ones were removed since.
func (p *planner) initial(sandbox string) (done bool) {
	list := p.want.Spec.InitContainers
	if len(list) == 0 {
		return true
	}
	done = p.regularLives(sandbox)
	passed := done // a later one was started, so this one has done its part
	var starts []int
	for i := len(list) - 1; i >= 0; i-- {
		c := &list[i]
		found, ok := p.newest(c.Name)
		if !ok || found.SandboxID != sandbox {
			if passed && IsSidecar(c) {
				starts = append(starts, i)
			}
			continue
		}
		if passed && !IsSidecar(c) {
			continue
		}
		switch p.initStep(c, found) {
		case again:
			starts = append(starts, i)
		case next:
			if i == len(list)-1 {
				done = true
			} else if !passed {
				starts = append(starts, i+1)
			}
		case fatal:
			p.kill = true
			return false
		}
		passed = true
	}
	if !passed {
		starts = append(starts, 0)
	}
	for j := len(starts) - 1; j >= 0; j-- {
		p.start(&list[starts[j]], sandbox)
	}
	return done
}

type step uint8

const (
	wait  step = iota // wait for it: it runs, or is being stopped
	next              // continue with the next one: it has done its part
	again             // start it again
	fatal             // end the pod: it has failed for good
)

func (p *planner) initStep(c *v1.Container, found Container) step {
	switch found.State {
	case Created:
		return again
	case Running:
		if !IsSidecar(c) {
			return wait
		}
		return p.sidecarStep(c, found)
	case Exited:
		switch {
		case IsSidecar(c):
			return again
		case !InitFailed(found.ExitCode, found.Reason):
			return next
		case RestartsInit(&p.want.Spec, c, found.ExitCode, found.Reason):
			return again
		}
		return fatal
	}
	if !IsSidecar(c) && !restartsAtAll(&p.want.Spec, c) {
		return fatal
	}
	p.killOne(found, nil, "container is in an unknown state")
	return wait
}

// sidecarStep returns the next step for a running sidecar. The next container waits for the
// sidecar's startup probe, but not for its liveness probe.
func (p *planner) sidecarStep(c *v1.Container, found Container) step {
	if p.asked(c, found) {
		return next
	}
	probes := p.have.Probes[found.ID]
	if c.StartupProbe != nil && !p.started(found) {
		if probes.Startup == Failing {
			p.killOne(found, c.StartupProbe, "Init container "+c.Name+" failed startup probe")
		}
		return wait
	}
	switch {
	case changed(c, found):
		p.killOne(found, nil, "Init container "+c.Name+" definition changed")
	case c.LivenessProbe != nil && probes.Liveness == Failing:
		p.killOne(found, c.LivenessProbe, "Init container "+c.Name+" failed liveness probe")
	default:
		p.resize(c, found)
	}
	return next
}

// started reports whether the startup probe of a container has succeeded. A probe without a
// result yet may have succeeded under an earlier agent, according to the status.
func (p *planner) started(c Container) bool {
	if result := p.have.Probes[c.ID].Startup; result != Unknowable || p.have.Status == nil {
		return result == Success
	}
	s := StatusOf(c.Name, p.have.Status.InitContainerStatuses)
	return s != nil && RuntimeID(s.ContainerID) == c.ID && s.Started != nil && *s.Started
}

// regularLives reports whether the sandbox has a regular container. Then the pod is
// initialised, even if init containers were removed since.
func (p *planner) regularLives(sandbox string) bool {
	for i := range p.want.Spec.Containers {
		c, ok := p.newest(p.want.Spec.Containers[i].Name)
		if ok && c.SandboxID == sandbox && (c.State == Created || c.State == Running || c.State == Exited) {
			return true
		}
	}
	return false
}
