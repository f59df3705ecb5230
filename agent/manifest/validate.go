package manifest

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
)

// pod checks what protects the node and its other pods, and rejects values that crisp
// does not support in fields that it does. An API server would check more.
func (v *validator) pod(pod *v1.Pod, o Options) {
	v.podSpec(&pod.Spec, o)
	v.volumes(&pod.Spec)
	names := map[string]string{}
	ports := map[string]string{}
	for i := range pod.Spec.InitContainers {
		v.container(&pod.Spec, &pod.Spec.InitContainers[i], fmt.Sprintf("spec.initContainers[%d]", i), names, map[string]string{})
	}
	if len(pod.Spec.Containers) == 0 {
		v.report("spec.containers", "a pod needs at least one container")
	}
	for i := range pod.Spec.Containers {
		v.container(&pod.Spec, &pod.Spec.Containers[i], fmt.Sprintf("spec.containers[%d]", i), names, ports)
	}
}

// A validator collects what is wrong with one object.
type validator struct {
	*tree
	under string // path of the object in the document: "spec.template." for a template
	errs  Errors
}

func (v *validator) report(field, format string, args ...any) {
	field = v.under + field
	v.errs = append(v.errs, Error{Line: v.lineOf(field), Field: v.prefix + field, Text: fmt.Sprintf(format, args...)})
}

// valid reports the messages of one of apimachinery's checks.
func (v *validator) valid(field, value string, texts []string) {
	for _, text := range texts {
		v.report(field, "%q: %s", value, text)
	}
}

// required reports a missing value, or the messages of one of apimachinery's checks.
func (v *validator) required(field, value string, check func(string) []string) {
	if value == "" {
		v.report(field, "is missing")
		return
	}
	v.valid(field, value, check(value))
}

// atLeast reports a number below the least; nil passes.
func (v *validator) atLeast(field string, n *int32, least int32) {
	if n != nil && *n < least {
		v.report(field, "%d is less than %d", *n, least)
	}
}

// notNegative reports a negative number; nil passes.
func (v *validator) notNegative(field string, n *int64) {
	if n != nil && *n < 0 {
		v.report(field, "%d is negative", *n)
	}
}

// address reports what is not an IP address.
func (v *validator) address(field, value string) {
	if _, err := netip.ParseAddr(value); err != nil {
		v.report(field, "%q is not an IP address", value)
	}
}

// hasDotDot reports whether a path has an element "..".
func hasDotDot(p string) bool { return slices.Contains(strings.Split(p, "/"), "..") }

// oneOf reports a value that is none of those wanted; "" passes.
func oneOf[T ~string](v *validator, field string, value T, want ...T) {
	if value == "" || slices.Contains(want, value) {
		return
	}
	texts := make([]string, len(want))
	for i, w := range want {
		texts[i] = string(w)
	}
	v.report(field, "%q: want %s", value, strings.Join(texts, ", "))
}

// metadata checks the metadata of an object. named is false for a pod template, whose
// pods get their names from the workload.
func (v *validator) metadata(m metav1.Object, named bool) {
	if named {
		v.required("metadata.name", m.GetName(), validation.IsDNS1123Subdomain)
	}
	if ns := m.GetNamespace(); ns != "" {
		v.valid("metadata.namespace", ns, validation.IsDNS1123Label(ns))
	}
	for key, value := range m.GetLabels() {
		field := "metadata.labels[" + key + "]"
		v.valid(field, key, validation.IsQualifiedName(key))
		v.valid(field, value, validation.IsValidLabelValue(value))
		if reserved(key) || strings.HasPrefix(key, "io.kubernetes.") {
			v.report(field, "the prefix is reserved for the agent")
		}
	}
	for key := range m.GetAnnotations() {
		field := "metadata.annotations[" + key + "]"
		v.valid(field, key, validation.IsQualifiedName(strings.ToLower(key)))
		if reserved(key) {
			v.report(field, "the prefix is reserved for the agent")
		}
	}
}

// reserved reports whether only the agent may set a label or annotation.
func reserved(key string) bool { return strings.HasPrefix(key, "io.crisp.") }

func (v *validator) podSpec(spec *v1.PodSpec, o Options) {
	oneOf(v, "spec.restartPolicy", spec.RestartPolicy, v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever)
	oneOf(v, "spec.dnsPolicy", spec.DNSPolicy, v1.DNSDefault, v1.DNSNone, v1.DNSClusterFirst, v1.DNSClusterFirstWithHostNet)
	if spec.DNSPolicy == v1.DNSNone && (spec.DNSConfig == nil || len(spec.DNSConfig.Nameservers) == 0) {
		v.report("spec.dnsConfig", "dnsPolicy None needs at least one name server")
	}
	if spec.DNSConfig != nil {
		v.dns(spec.DNSConfig)
	}
	v.notNegative("spec.terminationGracePeriodSeconds", spec.TerminationGracePeriodSeconds)
	v.life(spec)
	if o.NodeName != "" && spec.NodeName != o.NodeName {
		v.report("spec.nodeName", "%q is another node: this one is %q", spec.NodeName, o.NodeName)
	}
	if spec.OS != nil && spec.OS.Name != v1.Linux {
		v.report("spec.os.name", "%q: crisp runs linux", spec.OS.Name)
	}
	if !ptr.Deref(spec.HostUsers, true) && (spec.HostNetwork || spec.HostPID || spec.HostIPC) {
		v.report("spec.hostUsers", "false excludes hostNetwork, hostPID and hostIPC")
	}
	v.priority(spec)
	for _, account := range [][2]string{{"serviceAccountName", spec.ServiceAccountName}, {"serviceAccount", spec.DeprecatedServiceAccount}} {
		if account[1] != "" && account[1] != "default" {
			v.report("spec."+account[0], "%q: there are no service accounts without an API server", account[1])
		}
	}
	if ptr.Deref(spec.ShareProcessNamespace, false) && spec.HostPID {
		v.report("spec.shareProcessNamespace", "excludes hostPID")
	}
	for i, alias := range spec.HostAliases {
		field := fmt.Sprintf("spec.hostAliases[%d]", i)
		v.address(field+".ip", alias.IP)
		for j, name := range alias.Hostnames {
			v.valid(fmt.Sprintf("%s.hostnames[%d]", field, j), name, validation.IsDNS1123Subdomain(name))
		}
	}
	sc := spec.SecurityContext
	v.user("spec.securityContext", sc.RunAsUser, sc.RunAsGroup, sc.SeccompProfile)
	for i, s := range sc.Sysctls {
		if s.Name == "" || strings.Contains(s.Name, "..") {
			v.report(fmt.Sprintf("spec.securityContext.sysctls[%d].name", i), "%q is not a sysctl", s.Name)
		}
	}
}

// priority checks that the priority of a pod is given, and that it agrees with its class.
func (v *validator) priority(spec *v1.PodSpec) {
	want, known := priorities[spec.PriorityClassName]
	switch {
	case spec.PriorityClassName != "" && spec.Priority == nil:
		v.report("spec.priorityClassName", "%q: there are no PriorityClass objects: set spec.priority too", spec.PriorityClassName)
	case known && *spec.Priority != want:
		v.report("spec.priority", "%d is not that of %s, %d", *spec.Priority, spec.PriorityClassName, want)
	case !known && spec.Priority != nil && *spec.Priority > 1_000_000_000:
		v.report("spec.priority", "%d: more than 1000000000 is for the classes of the system", *spec.Priority)
	}
}

func (v *validator) dns(c *v1.PodDNSConfig) {
	if len(c.Nameservers) > 3 { // resolv.conf(5): MAXNS
		v.report("spec.dnsConfig.nameservers", "at most 3 are used by resolvers")
	}
	for i, s := range c.Nameservers {
		v.address(fmt.Sprintf("spec.dnsConfig.nameservers[%d]", i), s)
	}
	if len(c.Searches) > 32 {
		v.report("spec.dnsConfig.searches", "at most 32 are allowed")
	}
	for i, s := range c.Searches {
		if s != "." {
			v.valid(fmt.Sprintf("spec.dnsConfig.searches[%d]", i), s, validation.IsDNS1123Subdomain(strings.TrimSuffix(s, ".")))
		}
	}
	for i, o := range c.Options {
		if o.Name == "" {
			v.report(fmt.Sprintf("spec.dnsConfig.options[%d].name", i), "is missing")
		}
	}
}

func (v *validator) user(field string, uid, gid *int64, p *v1.SeccompProfile) {
	for _, id := range []struct {
		name  string
		value *int64
	}{{"runAsUser", uid}, {"runAsGroup", gid}} {
		if id.value != nil && (*id.value < 0 || *id.value > 1<<31-1) {
			v.report(field+"."+id.name, "%d is not between 0 and 2147483647", *id.value)
		}
	}
	if p == nil {
		return
	}
	field += ".seccompProfile"
	oneOf(v, field+".type", p.Type, v1.SeccompProfileTypeRuntimeDefault, v1.SeccompProfileTypeUnconfined, v1.SeccompProfileTypeLocalhost)
	local := ptr.Deref(p.LocalhostProfile, "") != ""
	switch {
	case p.Type == "":
		v.report(field+".type", "is missing")
	case local != (p.Type == v1.SeccompProfileTypeLocalhost):
		v.report(field+".localhostProfile", "goes with the type Localhost, and only with it")
	case local && (path.IsAbs(*p.LocalhostProfile) || hasDotDot(*p.LocalhostProfile)):
		v.report(field+".localhostProfile", "%q must stay below the agent's seccomp directory", *p.LocalhostProfile)
	}
}
