package manifest

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// defaultHandlers sets the defaults of probes, hooks and the termination message.
func defaultHandlers(c *v1.Container) {
	setDefault(&c.TerminationMessagePath, v1.TerminationMessagePathDefault)
	setDefault(&c.TerminationMessagePolicy, v1.TerminationMessageReadFile)
	for _, p := range []*v1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		if p == nil {
			continue
		}
		setDefault(&p.TimeoutSeconds, 1)
		setDefault(&p.PeriodSeconds, 10)
		setDefault(&p.SuccessThreshold, 1)
		setDefault(&p.FailureThreshold, 3)
		defaultHTTPGet(p.HTTPGet)
		if p.GRPC != nil {
			setPointer(&p.GRPC.Service, "")
		}
	}
	if c.Lifecycle == nil {
		return
	}
	for _, h := range []*v1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
		if h != nil {
			defaultHTTPGet(h.HTTPGet)
		}
	}
}

func defaultHTTPGet(a *v1.HTTPGetAction) {
	if a != nil {
		setDefault(&a.Path, "/")
		setDefault(&a.Scheme, v1.URISchemeHTTP)
	}
}

// defaultResizePolicy allows CPU and memory to change without a restart of the container, unless
// the manifest says otherwise.
func defaultResizePolicy(c *v1.Container) {
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		_, requested := c.Resources.Requests[name]
		_, limited := c.Resources.Limits[name]
		named := slices.ContainsFunc(c.ResizePolicy, func(p v1.ContainerResizePolicy) bool { return p.ResourceName == name })
		if (requested || limited) && !named {
			c.ResizePolicy = append(c.ResizePolicy, v1.ContainerResizePolicy{ResourceName: name, RestartPolicy: v1.NotRequired})
		}
	}
}
