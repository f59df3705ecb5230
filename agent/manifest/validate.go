package manifest

import (
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/kubectl/pkg/util/fieldpath"
	"k8s.io/utils/ptr"
)

type validator struct {
	*tree
	under string // path of the object in the document: "spec.template." for a template
	node  string // the name of this node; "" accepts any
	spec  *v1.PodSpec
	in    *v1.Container // the container of the field being checked; spec is its pod's

	accepted bool // Options.Accepted: mistakes that are not vital are warnings
	vital    bool // the agent relies on the current check, or it protects the node
	errs     Errors
	warnings Errors
}

func (v *validator) report(field, format string, args ...any) {
	list := &v.errs
	if v.accepted && !v.vital {
		list = &v.warnings
	}
	field = v.under + field
	*list = append(*list, Error{Line: v.lineOf(field), Field: v.prefix + field, Text: fmt.Sprintf(format, args...)})
}

// remark warns of a field that crisp ignores although its author may rely on it.
func (v *validator) remark(field, text string) {
	v.warnings = append(v.warnings, Error{Line: v.lineOf(v.under + field), Field: v.prefix + v.under + field, Text: text})
}

// insist reports a mistake that is an error even in an object that was accepted before.
func (v *validator) insist(field, format string, args ...any) {
	v.vital = true
	v.report(field, format, args...)
	v.vital = false
}

func vital(is check) check {
	return func(v *validator, field string, x reflect.Value) {
		v.vital = true
		is(v, field, x)
		v.vital = false
	}
}

func (v *validator) valid(field, value string, texts []string) {
	for _, text := range texts {
		v.report(field, "%q: %s", value, text)
	}
}

func (v *validator) required(field, value string, check func(string) []string) {
	if value == "" {
		v.report(field, "is missing")
		return
	}
	v.valid(field, value, check(value))
}

// oneOf reports a value that is not in want. It accepts "".
func (v *validator) oneOf(field, value string, want []string) {
	if value != "" && !slices.Contains(want, value) {
		v.report(field, "%q: want %s", value, strings.Join(want, ", "))
	}
}

// metadata checks the metadata of an object. named is false for a pod template, whose pods get
// their names from the workload.
func (v *validator) metadata(m metav1.Object, named bool) {
	if named {
		vital(required(validation.IsDNS1123Subdomain))(v, "metadata.name", reflect.ValueOf(m.GetName()))
	}
	vital(optional(valid(validation.IsDNS1123Label)))(v, "metadata.namespace", reflect.ValueOf(m.GetNamespace()))
	for key, value := range m.GetLabels() {
		field := "metadata.labels[" + key + "]"
		v.valid(field, key, validation.IsQualifiedName(key))
		v.valid(field, value, validation.IsValidLabelValue(value))
		if reserved(key) || strings.HasPrefix(key, "io.kubernetes.") {
			v.insist(field, "the prefix is reserved for the agent")
		}
	}
	for key := range m.GetAnnotations() {
		field := "metadata.annotations[" + key + "]"
		v.valid(field, key, validation.IsQualifiedName(strings.ToLower(key)))
		if reserved(key) {
			v.insist(field, "the prefix is reserved for the agent")
		}
	}
}

func reserved(key string) bool { return strings.HasPrefix(key, "io.crisp.") }

// AutoUpdated reports whether a pod's annotation asks for new images of its tags.
func AutoUpdated(pod *v1.Pod) bool {
	return pod.Annotations[AnnotationAutoUpdate] == "registry" && pod.Spec.RestartPolicy == v1.RestartPolicyAlways
}

// Untagged returns why the image of a container is never updated; "" if its tag may move.
func Untagged(c *v1.Container) string {
	host, _, ok := strings.Cut(c.Image, "/")
	switch {
	case strings.Contains(c.Image, "@"):
		return "its image is named by digest"
	case c.ImagePullPolicy == v1.PullNever:
		return "its imagePullPolicy is Never"
	case !ok || !strings.ContainsAny(host, ".:") && host != "localhost":
		return "its image does not name a registry"
	}
	return ""
}

// autoUpdate checks the annotation AnnotationAutoUpdate.
func (v *validator) autoUpdate(pod *v1.Pod) {
	const field = "metadata.annotations[" + AnnotationAutoUpdate + "]"
	value, ok := pod.Annotations[AnnotationAutoUpdate]
	switch {
	case !ok:
		return
	case value != "registry":
		v.report(field, "%q: want registry", value)
	case !AutoUpdated(pod):
		v.remark(field, "has no effect: restartPolicy is not Always")
	}
	for _, c := range pod.Spec.Containers {
		if why := Untagged(&c); why != "" {
			v.remark(field, "container "+c.Name+" is not updated: "+why)
		}
	}
}

func (v *validator) podSpec(field string, spec *v1.PodSpec) {
	if spec.DNSPolicy == v1.DNSNone && (spec.DNSConfig == nil || len(spec.DNSConfig.Nameservers) == 0) {
		v.report(field+".dnsConfig", "dnsPolicy None needs at least one name server")
	}
	if v.node != "" && spec.NodeName != v.node {
		v.insist(field+".nodeName", "%q is another node: this one is %q", spec.NodeName, v.node)
	}
	if !ptr.Deref(spec.HostUsers, true) && (spec.HostNetwork || spec.HostPID || spec.HostIPC) {
		v.report(field+".hostUsers", "false excludes hostNetwork, hostPID and hostIPC")
	}
	if ptr.Deref(spec.ShareProcessNamespace, false) && spec.HostPID {
		v.report(field+".shareProcessNamespace", "excludes hostPID")
	}
	if spec.HostnameOverride != nil && spec.HostNetwork {
		v.report(field+".hostnameOverride", "a pod on the host's network has the host's name")
	}
	if spec.HostnameOverride != nil && ptr.Deref(spec.SetHostnameAsFQDN, false) {
		v.report(field+".hostnameOverride", "excludes setHostnameAsFQDN")
	}
	v.priority(field, spec)
	v.keysAndValues(field+".nodeSelector", spec.NodeSelector)
	v.podResources(field, spec)
	names, ports := map[string]string{}, map[string]string{}
	for i := range spec.InitContainers {
		at := fmt.Sprintf("%s.initContainers[%d]", field, i)
		v.named(at, &spec.InitContainers[i], names)
		v.initial(at, &spec.InitContainers[i])
		v.hostPorts(at, &spec.InitContainers[i], map[string]string{})
	}
	for i := range spec.Containers {
		at := fmt.Sprintf("%s.containers[%d]", field, i)
		v.named(at, &spec.Containers[i], names)
		v.hostPorts(at, &spec.Containers[i], ports)
	}
	volumes := map[string]bool{}
	for i, vol := range spec.Volumes {
		if volumes[vol.Name] {
			v.insist(fmt.Sprintf("%s.volumes[%d].name", field, i), "volume %s is defined twice", vol.Name)
		}
		volumes[vol.Name] = true
	}
}

// priority checks that a pod with a priority class also has a priority, and that it is the value of
// the class. For a custom class only a PriorityClass object would have the value.
func (v *validator) priority(field string, spec *v1.PodSpec) {
	want, known := priorities[spec.PriorityClassName]
	switch {
	case spec.PriorityClassName != "" && spec.Priority == nil:
		v.report(field+".priorityClassName", "%q: there are no PriorityClass objects: set spec.priority too", spec.PriorityClassName)
	case known && *spec.Priority != want:
		v.report(field+".priority", "%d is not the value of %s, %d", *spec.Priority, spec.PriorityClassName, want)
	case !known && spec.Priority != nil && *spec.Priority > 1_000_000_000:
		v.report(field+".priority", "%d: more than 1000000000 is reserved for the system's priority classes", *spec.Priority)
	}
}

// named reports a container with the same name as another. names has the fields of the containers
// before it.
func (v *validator) named(field string, c *v1.Container, names map[string]string) {
	if other, taken := names[c.Name]; taken && c.Name != "" {
		v.insist(field+".name", "%q is the name of %s too", c.Name, other)
	}
	names[c.Name] = field
}

func (v *validator) initial(field string, c *v1.Container) {
	if ptr.Deref(c.RestartPolicy, "") == v1.ContainerRestartPolicyAlways {
		return
	}
	for _, name := range set(reflect.ValueOf(*c)) {
		switch name {
		case "startupProbe", "livenessProbe", "readinessProbe", "lifecycle":
			v.report(field+"."+name, "an init container cannot have it unless its restartPolicy is Always")
		}
	}
	for i, p := range c.ResizePolicy {
		if p.RestartPolicy == v1.RestartContainer {
			v.report(fmt.Sprintf("%s.resizePolicy[%d].restartPolicy", field, i), "RestartContainer is for a container that is restarted: set restartPolicy Always")
		}
	}
}

func (v *validator) hostPorts(field string, c *v1.Container, taken map[string]string) {
	for i, p := range c.Ports {
		if p.HostPort <= 0 {
			continue
		}
		at, key := fmt.Sprintf("%s.ports[%d]", field, i), fmt.Sprintf("%s %s:%d", p.Protocol, p.HostIP, p.HostPort)
		if other, ok := taken[key]; ok {
			v.report(at+".hostPort", "%d is taken by %s", p.HostPort, other)
		}
		taken[key] = at
	}
}

func (v *validator) container(field string, c *v1.Container) {
	if c.RestartPolicy == nil && len(c.RestartPolicyRules) > 0 {
		v.report(field+".restartPolicyRules", "needs a restartPolicy")
	}
	names, paths, resized := map[string]bool{}, map[string]bool{}, map[v1.ResourceName]bool{}
	for i, p := range c.Ports {
		at := fmt.Sprintf("%s.ports[%d]", field, i)
		if names[p.Name] && p.Name != "" {
			v.report(at+".name", "%q is the name of two ports", p.Name)
		}
		names[p.Name] = true
		if v.spec.HostNetwork && p.HostPort != p.ContainerPort {
			v.report(at+".hostPort", "%d differs from containerPort %d, which hostNetwork does not allow", p.HostPort, p.ContainerPort)
		}
	}
	for i, m := range c.VolumeMounts {
		if clean := path.Clean(m.MountPath); m.MountPath != "" && paths[clean] {
			v.report(fmt.Sprintf("%s.volumeMounts[%d].mountPath", field, i), "%q is mounted twice", m.MountPath)
		} else {
			paths[clean] = true
		}
	}
	for i, p := range c.ResizePolicy {
		if resized[p.ResourceName] {
			v.report(fmt.Sprintf("%s.resizePolicy[%d].resourceName", field, i), "%s is listed twice", p.ResourceName)
		}
		resized[p.ResourceName] = true
		if p.RestartPolicy == "" {
			v.report(fmt.Sprintf("%s.resizePolicy[%d].restartPolicy", field, i), "is missing")
		} else if p.RestartPolicy != v1.NotRequired && v.spec.RestartPolicy == v1.RestartPolicyNever {
			v.report(fmt.Sprintf("%s.resizePolicy[%d].restartPolicy", field, i), "%s restarts a container, which the pod's restartPolicy Never rules out", p.RestartPolicy)
		}
	}
}

func (v *validator) restartRule(field string, r *v1.ContainerRestartRule) {
	if r.ExitCodes == nil {
		v.report(field+".exitCodes", "is missing")
	}
}

func (v *validator) restartingProbe(field string, p *v1.Probe) {
	if p.SuccessThreshold > 1 {
		v.report(field+".successThreshold", "must be 1")
	}
}

func (v *validator) readinessProbe(field string, p *v1.Probe) {
	if p.TerminationGracePeriodSeconds != nil {
		v.report(field+".terminationGracePeriodSeconds", "not for a readiness probe, which stops no container")
	}
}

func port(v *validator, field string, x reflect.Value) {
	p := x.Interface().(intstr.IntOrString)
	switch {
	case p.Type == intstr.Int:
		between(1, 65535)(v, field, reflect.ValueOf(p.IntVal))
	case !slices.ContainsFunc(v.in.Ports, func(named v1.ContainerPort) bool { return named.Name == p.StrVal }):
		v.report(field, "the container has no port named %q", p.StrVal)
	}
}

// stopSignal checks the stop signal of a container. As in Kubernetes, a pod with one must name
// its operating system.
func stopSignal(v *validator, field string, x reflect.Value) {
	if v.spec.OS == nil || v.spec.OS.Name != v1.Linux {
		v.report(field, "needs spec.os.name linux")
	}
	if s := x.String(); !strings.HasPrefix(s, "SIG") || path.Base(s) != s {
		v.report(field, "%q is not the name of a signal, such as SIGTERM", s)
	}
}

func (v *validator) volumeOf(name string) *v1.Volume {
	if i := slices.IndexFunc(v.spec.Volumes, func(vol v1.Volume) bool { return vol.Name == name }); i >= 0 {
		return &v.spec.Volumes[i]
	}
	return nil
}

func (v *validator) volumeMount(field string, m *v1.VolumeMount) {
	if v.volumeOf(m.Name) == nil {
		v.report(field+".name", "the pod has no volume %q", m.Name)
	}
	if m.MountPath == "" {
		v.report(field+".mountPath", "is missing")
	}
	if m.SubPath != "" && m.SubPathExpr != "" {
		v.report(field+".subPathExpr", "excludes subPath")
	}
	propagation := ptr.Deref(m.MountPropagation, v1.MountPropagationNone)
	if propagation == v1.MountPropagationBidirectional && !(v.in.SecurityContext != nil && ptr.Deref(v.in.SecurityContext.Privileged, false)) {
		v.report(field+".mountPropagation", "Bidirectional needs a privileged container")
	}
	recursive := ptr.Deref(m.RecursiveReadOnly, v1.RecursiveReadOnlyDisabled)
	if recursive == v1.RecursiveReadOnlyDisabled {
		return
	}
	if !m.ReadOnly {
		v.report(field+".recursiveReadOnly", "%s needs readOnly", recursive)
	}
	if propagation != v1.MountPropagationNone {
		v.report(field+".recursiveReadOnly", "%s excludes mountPropagation", recursive)
	}
}

func (v *validator) envVar(field string, e *v1.EnvVar) {
	if e.ValueFrom != nil && e.Value != "" {
		v.report(field, "has both value and valueFrom")
	}
}

func (v *validator) fileKey(field string, ref *v1.FileKeySelector) {
	switch vol := v.volumeOf(ref.VolumeName); {
	case vol == nil:
		v.report(field+".volumeName", "the pod has no volume %q", ref.VolumeName)
	case vol.EmptyDir == nil:
		v.report(field+".volumeName", "volume %s is not an emptyDir", ref.VolumeName)
	}
	switch {
	case ref.Path == "":
		v.report(field+".path", "is missing")
	case path.IsAbs(ref.Path) || hasDotDot(ref.Path):
		v.report(field+".path", "leads out of the volume")
	}
	if len(ref.Key) > 128 {
		v.report(field+".key", "has more than 128 characters")
	} else {
		v.required(field+".key", ref.Key, validation.IsRelaxedEnvVarName)
	}
}

// fieldRef checks a downward API reference to a field of the pod. want lists the fields that are
// allowed without a subscript.
func fieldRef(want ...string) check {
	return on(func(v *validator, field string, ref *v1.ObjectFieldSelector) {
		if ref.APIVersion != "" && ref.APIVersion != "v1" {
			v.report(field+".apiVersion", "%q: want v1", ref.APIVersion)
		}
		if m, key, ok := fieldpath.SplitMaybeSubscriptedPath(ref.FieldPath); ok && (m == "metadata.labels" || m == "metadata.annotations") {
			if m == "metadata.annotations" { // names of annotations may have capitals
				key = strings.ToLower(key)
			}
			v.valid(field+".fieldPath", key, validation.IsQualifiedName(key))
			return
		}
		v.oneOf(field+".fieldPath", ref.FieldPath, want)
		if ref.FieldPath == "" {
			v.report(field+".fieldPath", "is missing")
		}
	})
}

// resourceFields lists the resources that the downward API offers, except huge pages, whose names
// end in the page size.
var resourceFields = []string{
	"limits.cpu", "limits.memory", "limits.ephemeral-storage", "requests.cpu", "requests.memory", "requests.ephemeral-storage",
}

func (v *validator) resourceField(field string, ref *v1.ResourceFieldSelector) {
	list, name, _ := strings.Cut(ref.Resource, ".")
	if !(list == "limits" || list == "requests") || !IsHugePages(v1.ResourceName(name)) {
		v.oneOf(field+".resource", ref.Resource, resourceFields)
	}
	if ref.Resource == "" {
		v.report(field+".resource", "is missing")
	}
	v.divisor(field+".divisor", name, ref.Divisor)
	named := func(c v1.Container) bool { return c.Name == ref.ContainerName }
	if ref.ContainerName != "" && !slices.ContainsFunc(v.spec.Containers, named) && !slices.ContainsFunc(v.spec.InitContainers, named) {
		v.report(field+".containerName", "the pod has no container %q", ref.ContainerName)
	}
}

// divisors has the units in which the downward API can return a resource.
var divisors = map[bool][]string{
	true:  {"1", "1m"}, // of CPU
	false: {"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"},
}

func (v *validator) divisor(field, name string, q resource.Quantity) {
	if !q.IsZero() {
		v.oneOf(field, q.String(), divisors[name == string(v1.ResourceCPU)])
	}
}

func (v *validator) volume(field string, vol *v1.Volume) {
	if sources := set(reflect.ValueOf(vol.VolumeSource)); len(sources) > 1 {
		v.report(field, "has %d sources: %s", len(sources), strings.Join(sources, ", "))
	}
}

func (v *validator) emptyDir(field string, e *v1.EmptyDirVolumeSource) {
	if !strings.HasPrefix(string(e.Medium), string(v1.StorageMediumHugePages)) {
		v.oneOf(field+".medium", string(e.Medium), texts([]v1.StorageMedium{v1.StorageMediumDefault, v1.StorageMediumMemory, v1.StorageMediumHugePages}))
	}
	if e.SizeLimit != nil && e.SizeLimit.Sign() < 0 { // 0 means no limit
		v.report(field+".sizeLimit", "%s is negative", e.SizeLimit)
	}
}

func (v *validator) downwardFile(field string, item *v1.DownwardAPIVolumeFile) {
	switch {
	case item.FieldRef != nil && item.ResourceFieldRef != nil:
		v.report(field, "has both fieldRef and resourceFieldRef")
	case item.FieldRef == nil && item.ResourceFieldRef == nil:
		v.report(field, "has neither fieldRef nor resourceFieldRef")
	case item.ResourceFieldRef != nil && item.ResourceFieldRef.ContainerName == "":
		v.report(field+".resourceFieldRef.containerName", "is missing")
	}
}

// projected reports a path that several sources of a volume have.
func (v *validator) projected(field string, p *v1.ProjectedVolumeSource) {
	paths := map[string]bool{}
	once := func(field, kind string, items []v1.KeyToPath) {
		for i, item := range items {
			if paths[item.Path] {
				v.report(fmt.Sprintf("%s.%s.items[%d].path", field, kind, i), "%q is the path of two sources", item.Path)
			}
			paths[item.Path] = true
		}
	}
	for i, s := range p.Sources {
		field := fmt.Sprintf("%s.sources[%d]", field, i)
		if sources := set(reflect.ValueOf(s)); len(sources) > 1 {
			v.report(field, "has %d sources: %s", len(sources), strings.Join(sources, ", "))
		}
		once(field, "configMap", ptr.Deref(s.ConfigMap, v1.ConfigMapProjection{}).Items)
		once(field, "secret", ptr.Deref(s.Secret, v1.SecretProjection{}).Items)
		var items []v1.KeyToPath
		for _, item := range ptr.Deref(s.DownwardAPI, v1.DownwardAPIProjection{}).Items {
			items = append(items, v1.KeyToPath{Path: item.Path})
		}
		once(field, "downwardAPI", items)
	}
}
