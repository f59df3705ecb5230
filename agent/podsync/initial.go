package podsync

import (
	v1 "k8s.io/api/core/v1"
)

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

// A step is what to do after looking at an init container.
type step uint8

const (
	wait  step = iota // wait for it: it runs, or is being stopped
	next              // continue with the next one: it has done its part
	again             // start it again
	fatal             // end the pod: it has failed for good
)

// initStep returns the next step for an init container of the pod's sandbox.
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
