package manifest

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// life checks the pod's deadline, its names and its references.
func (v *validator) life(spec *v1.PodSpec) {
	if s := spec.ActiveDeadlineSeconds; s != nil && (*s < 1 || *s > math.MaxInt32) {
		v.report("spec.activeDeadlineSeconds", "%d is not between 1 and %d", *s, math.MaxInt32)
	}
	for _, name := range []struct {
		field string
		value string
	}{{"spec.hostname", spec.Hostname}, {"spec.subdomain", spec.Subdomain}} {
		if name.value != "" {
			v.valid(name.field, name.value, validation.IsDNS1123Label(name.value))
		}
	}
	if name := spec.HostnameOverride; name != nil {
		v.valid("spec.hostnameOverride", *name, validation.IsDNS1123Subdomain(*name))
		if spec.HostNetwork {
			v.report("spec.hostnameOverride", "a pod on the host's network has the host's name")
		}
	}
	if name := spec.RuntimeClassName; name != nil {
		v.valid("spec.runtimeClassName", *name, validation.IsDNS1123Subdomain(*name))
	}
	for i, ref := range spec.ImagePullSecrets {
		if ref.Name == "" {
			v.report(fmt.Sprintf("spec.imagePullSecrets[%d].name", i), "is missing")
		}
	}
}

// handlers checks a container's probes and hooks, its restart rules and its termination
// message. init says that it is an init container.
func (v *validator) handlers(c *v1.Container, field string, init bool) {
	sidecar := c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
	plain := init && !sidecar
	for _, p := range []struct {
		name  string
		probe *v1.Probe
	}{{"startupProbe", c.StartupProbe}, {"livenessProbe", c.LivenessProbe}, {"readinessProbe", c.ReadinessProbe}} {
		if p.probe == nil {
			continue
		}
		if plain {
			v.report(field+"."+p.name, "is for containers that go on, not for an init container without restartPolicy Always")
			continue
		}
		v.probe(c, p.probe, field+"."+p.name, p.name)
	}
	if c.Lifecycle != nil {
		if plain {
			v.report(field+".lifecycle", "is for containers that go on, not for an init container without restartPolicy Always")
		}
		v.hook(c, c.Lifecycle.PostStart, field+".lifecycle.postStart")
		v.hook(c, c.Lifecycle.PreStop, field+".lifecycle.preStop")
	}
	oneOf(v, field+".terminationMessagePolicy", c.TerminationMessagePolicy, v1.TerminationMessageReadFile, v1.TerminationMessageFallbackToLogsOnError)
	if hasDotDot(c.TerminationMessagePath) {
		v.report(field+".terminationMessagePath", "%q: must not contain ..", c.TerminationMessagePath)
	}
	v.restarts(c, field, init)
	v.resizes(c, field)
}

func (v *validator) probe(c *v1.Container, p *v1.Probe, field, name string) {
	v.handler(c, &v1.LifecycleHandler{Exec: p.Exec, HTTPGet: p.HTTPGet, TCPSocket: p.TCPSocket}, p.GRPC, field)
	for _, n := range []struct {
		name  string
		value int32
		least int32
	}{
		{"initialDelaySeconds", p.InitialDelaySeconds, 0}, {"timeoutSeconds", p.TimeoutSeconds, 1}, {"periodSeconds", p.PeriodSeconds, 1},
		{"successThreshold", p.SuccessThreshold, 1}, {"failureThreshold", p.FailureThreshold, 1},
	} {
		v.atLeast(field+"."+n.name, &n.value, n.least)
	}
	if name != "readinessProbe" && p.SuccessThreshold > 1 {
		v.report(field+".successThreshold", "must be 1")
	}
	if grace := p.TerminationGracePeriodSeconds; grace != nil {
		if name == "readinessProbe" {
			v.report(field+".terminationGracePeriodSeconds", "a readiness probe ends nothing")
		} else if *grace < 1 {
			v.report(field+".terminationGracePeriodSeconds", "%d is less than 1", *grace)
		}
	}
}

func (v *validator) hook(c *v1.Container, h *v1.LifecycleHandler, field string) {
	switch {
	case h == nil:
	case h.TCPSocket != nil:
		v.report(field+".tcpSocket", "does nothing: use exec, httpGet or sleep")
	default:
		v.handler(c, h, nil, field)
	}
}

// handler checks that a probe or hook has exactly one action, and checks that action.
func (v *validator) handler(c *v1.Container, h *v1.LifecycleHandler, grpc *v1.GRPCAction, field string) {
	n := 0
	if h.Exec != nil {
		n++
		if len(h.Exec.Command) == 0 {
			v.report(field+".exec.command", "is missing")
		}
	}
	if h.HTTPGet != nil {
		n++
		oneOf(v, field+".httpGet.scheme", h.HTTPGet.Scheme, v1.URISchemeHTTP, v1.URISchemeHTTPS)
		v.port(c, h.HTTPGet.Port, field+".httpGet.port")
		for i, header := range h.HTTPGet.HTTPHeaders {
			v.valid(fmt.Sprintf("%s.httpGet.httpHeaders[%d].name", field, i), header.Name, validation.IsHTTPHeaderName(header.Name))
		}
	}
	if h.TCPSocket != nil {
		n++
		v.port(c, h.TCPSocket.Port, field+".tcpSocket.port")
	}
	if grpc != nil {
		n++
		v.port(c, intstr.FromInt32(grpc.Port), field+".grpc.port")
	}
	if h.Sleep != nil {
		n++
		v.notNegative(field+".sleep.seconds", &h.Sleep.Seconds)
	}
	if n != 1 {
		v.report(field, "names %d actions, want one", n)
	}
}

// port checks a port number, or the name of one of the container's ports.
func (v *validator) port(c *v1.Container, p intstr.IntOrString, field string) {
	if p.Type == intstr.Int {
		if p.IntVal < 1 || p.IntVal > 65535 {
			v.report(field, "%d is not between 1 and 65535", p.IntVal)
		}
		return
	}
	if !slices.ContainsFunc(c.Ports, func(named v1.ContainerPort) bool { return named.Name == p.StrVal }) {
		v.report(field, "the container has no port of the name %q", p.StrVal)
	}
}

func (v *validator) restarts(c *v1.Container, field string, init bool) {
	if c.RestartPolicy == nil {
		if len(c.RestartPolicyRules) > 0 {
			v.report(field+".restartPolicyRules", "needs a restartPolicy")
		}
		return
	}
	oneOf(v, field+".restartPolicy", *c.RestartPolicy, v1.ContainerRestartPolicyAlways, v1.ContainerRestartPolicyOnFailure, v1.ContainerRestartPolicyNever)
	if len(c.RestartPolicyRules) > 20 {
		v.report(field+".restartPolicyRules", "has more than 20 rules")
	}
	for i, r := range c.RestartPolicyRules {
		field := fmt.Sprintf("%s.restartPolicyRules[%d]", field, i)
		oneOf(v, field+".action", r.Action, v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers)
		if r.ExitCodes == nil {
			v.report(field+".exitCodes", "is missing")
			continue
		}
		oneOf(v, field+".exitCodes.operator", r.ExitCodes.Operator, v1.ContainerRestartRuleOnExitCodesOpIn, v1.ContainerRestartRuleOnExitCodesOpNotIn)
		if len(r.ExitCodes.Values) == 0 || len(r.ExitCodes.Values) > 255 {
			v.report(field+".exitCodes.values", "has %d values, want 1 to 255", len(r.ExitCodes.Values))
		}
	}
}

func (v *validator) resizes(c *v1.Container, field string) {
	seen := map[v1.ResourceName]bool{}
	for i, p := range c.ResizePolicy {
		field := fmt.Sprintf("%s.resizePolicy[%d]", field, i)
		oneOf(v, field+".resourceName", p.ResourceName, v1.ResourceCPU, v1.ResourceMemory)
		oneOf(v, field+".restartPolicy", p.RestartPolicy, v1.NotRequired, v1.RestartContainer)
		if seen[p.ResourceName] {
			v.report(field+".resourceName", "%s stands twice", p.ResourceName)
		}
		seen[p.ResourceName] = true
	}
}

// stopSignal checks the stop signal of a container. As in Kubernetes the pod must then
// name its operating system.
func (v *validator) stopSignal(spec *v1.PodSpec, c *v1.Container, field string) {
	if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil {
		return
	}
	field += ".lifecycle.stopSignal"
	if spec.OS == nil || spec.OS.Name != v1.Linux {
		v.report(field, "needs spec.os.name linux")
	}
	if s := string(*c.Lifecycle.StopSignal); !strings.HasPrefix(s, "SIG") || path.Base(s) != s {
		v.report(field, "%q is no signal such as SIGTERM", s)
	}
}
