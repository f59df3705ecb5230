package manifest

import (
	"fmt"
	"math"
	"net/netip"
	"path"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
)

// A check reports what is wrong with a value.
type check func(v *validator, field string, x reflect.Value)

// checks has the checks of structs, by their Go type ("Probe"), and of their fields, by type and
// JSON name ("Probe.periodSeconds"), with "[]" for each element of a list. The fields of an inlined
// struct belong to the outer type. Nil pointers are not checked.
//
// The checks protect the node and its other pods, and reject values that crisp does not support in
// fields that it supports. An API server checks more. Only the vital checks apply to objects that
// were accepted before (Options.Accepted): those of values that become a path, could crash or
// occupy the agent, or could take resources from other pods.
var checks = map[string]check{
	"PodSpec":                       on((*validator).podSpec),
	"PodSpec.activeDeadlineSeconds": between(1, math.MaxInt32),
	"PodSpec.containers":            vital(filled("a pod needs at least one container")),
	"NodeAffinity.requiredDuringSchedulingIgnoredDuringExecution": on((*validator).nodeTerms),
	"PodSpec.hostname":                        optional(valid(validation.IsDNS1123Label)),
	"PodSpec.hostnameOverride":                hostName,
	"PodSpec.nodeName":                        nodeName,
	"PodSpec.priorityClassName":               optional(valid(validation.IsDNS1123Subdomain)),
	"PodSpec.runtimeClassName":                valid(validation.IsDNS1123Subdomain),
	"PodSpec.serviceAccount":                  serviceAccount,
	"PodSpec.serviceAccountName":              serviceAccount,
	"PodSpec.subdomain":                       optional(valid(validation.IsDNS1123Label)),
	"HostAlias.hostnames[]":                   valid(validation.IsDNS1123Subdomain),
	"HostAlias.ip":                            address,
	"PodDNSConfig.nameservers":                atMost(3, "at most 3 are used by resolvers"), // resolv.conf(5): MAXNS
	"PodDNSConfig.nameservers[]":              address,
	"PodDNSConfig.searches":                   atMost(32, "at most 32 are allowed"),
	"PodDNSConfig.searches[]":                 search,
	"PodDNSConfigOption.name":                 filled("is missing"),
	"PodOS.name":                              linux,
	"AppArmorProfile":                         on((*validator).appArmor),
	"PodSecurityContext":                      on((*validator).podSecurity),
	"PodSecurityContext.fsGroup":              between(0, math.MaxInt32),
	"PodSecurityContext.supplementalGroups[]": between(0, math.MaxInt32),
	"PodSecurityContext.runAsGroup":           between(0, math.MaxInt32),
	"PodSecurityContext.runAsUser":            between(0, math.MaxInt32),
	"SeccompProfile":                          on((*validator).seccomp),

	"Container":                              on((*validator).container),
	"Container.image":                        image,
	"Container.livenessProbe":                on((*validator).restartingProbe),
	"Container.name":                         vital(required(validation.IsDNS1123Label)),
	"Container.readinessProbe":               on((*validator).readinessProbe),
	"Container.resources":                    on((*validator).resources),
	"Container.restartPolicyRules":           atMost(20, "has more than 20 rules"),
	"Container.startupProbe":                 on((*validator).restartingProbe),
	"Container.terminationMessagePath":       noDotDot,
	"ContainerPort.containerPort":            between(1, 65535),
	"ContainerPort.hostIP":                   optional(address),
	"ContainerPort.hostPort":                 optional(between(1, 65535)),
	"ContainerPort.name":                     optional(valid(validation.IsValidPortName)),
	"ContainerResizePolicy.resourceName":     among(v1.ResourceCPU, v1.ResourceMemory),
	"ContainerRestartRule":                   on((*validator).restartRule),
	"ContainerRestartRuleOnExitCodes.values": exitCodes,
	"ExecAction.command":                     filled("is missing"),
	"GRPCAction.port":                        between(1, 65535),
	"HTTPGetAction.port":                     port,
	"HTTPHeader.name":                        valid(validation.IsHTTPHeaderName),
	"Lifecycle.stopSignal":                   stopSignal,
	"LifecycleHandler":                       hook,
	"Probe.failureThreshold":                 atLeast(1),
	"Probe.initialDelaySeconds":              atLeast(0),
	"Probe.periodSeconds":                    vital(atLeast(1)),
	"Probe.successThreshold":                 atLeast(1),
	"Probe.terminationGracePeriodSeconds":    atLeast(1),
	"Probe.timeoutSeconds":                   atLeast(1),
	"ProbeHandler":                           oneAction,
	"SecurityContext":                        on((*validator).security),
	"SecurityContext.runAsGroup":             between(0, math.MaxInt32),
	"SecurityContext.runAsUser":              between(0, math.MaxInt32),
	"SleepAction.seconds":                    pause,
	"TCPSocketAction.port":                   port,
	"VolumeMount":                            on((*validator).volumeMount),
	"VolumeMount.subPath":                    optional(below),
	"VolumeMount.subPathExpr":                optional(below),

	"ConfigMapEnvSource.name":   required(validation.IsDNS1123Subdomain),
	"ConfigMapKeySelector.key":  required(validation.IsConfigMapKey),
	"ConfigMapKeySelector.name": required(validation.IsDNS1123Subdomain),
	"EnvFromSource":             oneSource,
	"EnvFromSource.prefix":      optional(valid(validation.IsRelaxedEnvVarName)),
	"EnvVar":                    on((*validator).envVar),
	"EnvVar.name":               required(validation.IsRelaxedEnvVarName),
	"EnvVarSource":              oneSource,
	"EnvVarSource.fieldRef":     fieldRef("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
	"FileKeySelector":           on((*validator).fileKey),
	"ResourceFieldSelector":     on((*validator).resourceField),
	"SecretEnvSource.name":      required(validation.IsDNS1123Subdomain),
	"SecretKeySelector.key":     required(validation.IsConfigMapKey),
	"SecretKeySelector.name":    required(validation.IsDNS1123Subdomain),

	"ConfigMapProjection.name":                    required(validation.IsDNS1123Subdomain),
	"ConfigMapVolumeSource.defaultMode":           mode,
	"ConfigMapVolumeSource.name":                  required(validation.IsDNS1123Subdomain),
	"DownwardAPIVolumeFile":                       on((*validator).downwardFile),
	"DownwardAPIVolumeFile.fieldRef":              fieldRef("metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations"),
	"DownwardAPIVolumeFile.mode":                  mode,
	"DownwardAPIVolumeFile.path":                  vital(inside),
	"DownwardAPIVolumeSource.defaultMode":         mode,
	"EmptyDirVolumeSource":                        on((*validator).emptyDir),
	"HostPathVolumeSource.path":                   hostPath,
	"ImageVolumeSource.reference":                 filled("is missing"),
	"KeyToPath.key":                               required(validation.IsConfigMapKey),
	"KeyToPath.mode":                              mode,
	"KeyToPath.path":                              vital(inside),
	"PersistentVolumeClaimVolumeSource.claimName": vital(required(validation.IsDNS1123Subdomain)),
	"ProjectedVolumeSource":                       on((*validator).projected),
	"ProjectedVolumeSource.defaultMode":           mode,
	"SecretProjection.name":                       required(validation.IsDNS1123Subdomain),
	"SecretVolumeSource.defaultMode":              mode,
	"SecretVolumeSource.secretName":               required(validation.IsDNS1123Subdomain),
	"Volume":                                      on((*validator).volume),
	"Volume.name":                                 vital(required(validation.IsDNS1123Label)),

	"DeploymentSpec.minReadySeconds":        atLeast(0),
	"DaemonSetSpec.revisionHistoryLimit":    atLeast(0),
	"DeploymentSpec.revisionHistoryLimit":   atLeast(0),
	"DeploymentSpec.replicas":               vital(between(0, maxPods)),
	"JobSpec.activeDeadlineSeconds":         notNegative,
	"JobSpec.backoffLimit":                  atLeast(0),
	"JobSpec.completions":                   vital(atLeast(0)),
	"JobSpec.parallelism":                   vital(between(0, maxPods)),
	"JobSpec.ttlSecondsAfterFinished":       atLeast(0),
	"PersistentVolumeClaimSpec.accessModes": filled("is missing"),
	"PersistentVolumeClaimSpec.volumeMode":  filled(`"": want Filesystem`),
	"RuntimeClass.handler":                  required(validation.IsDNS1123Label),
}

// maxPods is the maximum number of pods of a workload: more than a node can run, but few enough
// that planning them all does not exhaust its memory.
const maxPods = 10_000

// enums has the values of string types. "" is valid too.
var enums = tabulate(
	enum(v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever),
	enum(v1.DNSDefault, v1.DNSNone, v1.DNSClusterFirst, v1.DNSClusterFirstWithHostNet),
	enum(v1.PullAlways, v1.PullIfNotPresent, v1.PullNever),
	enum(v1.FSGroupChangeAlways, v1.FSGroupChangeOnRootMismatch),
	enum(v1.SupplementalGroupsPolicyMerge, v1.SupplementalGroupsPolicyStrict),
	enum(v1.PreemptLowerPriority, v1.PreemptNever),
	enum(v1.SELinuxChangePolicyRecursive, v1.SELinuxChangePolicyMountOption),
	enum(v1.AppArmorProfileTypeRuntimeDefault, v1.AppArmorProfileTypeUnconfined, v1.AppArmorProfileTypeLocalhost),
	enum(v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP),
	enum(v1.MountPropagationNone, v1.MountPropagationHostToContainer, v1.MountPropagationBidirectional),
	enum(v1.RecursiveReadOnlyDisabled, v1.RecursiveReadOnlyIfPossible, v1.RecursiveReadOnlyEnabled),
	enum(v1.DefaultProcMount, v1.UnmaskedProcMount),
	enum(v1.SeccompProfileTypeRuntimeDefault, v1.SeccompProfileTypeUnconfined, v1.SeccompProfileTypeLocalhost),
	enum(v1.TerminationMessageReadFile, v1.TerminationMessageFallbackToLogsOnError),
	enum(v1.URISchemeHTTP, v1.URISchemeHTTPS),
	enum(v1.ContainerRestartPolicyAlways, v1.ContainerRestartPolicyOnFailure, v1.ContainerRestartPolicyNever),
	enum(v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers),
	enum(v1.ContainerRestartRuleOnExitCodesOpIn, v1.ContainerRestartRuleOnExitCodesOpNotIn),
	enum(v1.NotRequired, v1.RestartContainer),
	enum(v1.HostPathDirectoryOrCreate, v1.HostPathDirectory, v1.HostPathFileOrCreate, v1.HostPathFile, v1.HostPathSocket, v1.HostPathCharDev, v1.HostPathBlockDev),
	enum(v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOncePod),
	enum(v1.PersistentVolumeFilesystem),
	enum(appsv1.RollingUpdateDeploymentStrategyType, appsv1.RecreateDeploymentStrategyType),
	enum(batchv1.NonIndexedCompletion, batchv1.IndexedCompletion),
)

type enumeration struct {
	typ    reflect.Type
	values []string
}

func enum[T ~string](values ...T) enumeration {
	return enumeration{reflect.TypeFor[T](), texts(values)}
}

func tabulate(list ...enumeration) map[reflect.Type][]string {
	table := map[reflect.Type][]string{}
	for _, e := range list {
		table[e.typ] = e.values
	}
	return table
}

func texts[T ~string](values []T) []string {
	list := make([]string, len(values))
	for i, value := range values {
		list[i] = string(value)
	}
	return list
}

// values checks x and everything in it. field is the path of x in the object, place its key in
// checks.
func (v *validator) values(field, place string, x reflect.Value) {
	given := false
	for x.Kind() == reflect.Pointer {
		if x.IsNil() {
			return
		}
		x, given = x.Elem(), true
	}
	if is, ok := checks[place]; ok {
		is(v, field, x)
	}
	switch x.Kind() {
	case reflect.String:
		if want, ok := enums[x.Type()]; ok {
			v.oneOf(field, x.String(), want)
			if given && x.String() == "" && x.Type() != reflect.TypeFor[v1.HostPathType]() {
				v.report(field, `"": want %s`, strings.Join(want, ", "))
			}
		}
	case reflect.Slice:
		for i := range x.Len() {
			v.values(fmt.Sprintf("%s[%d]", field, i), place+"[]", x.Index(i))
		}
	case reflect.Struct:
		v.fields(field, x.Type().Name(), x)
	}
}

// fields checks a struct and its fields. within is the type under which checks has the fields.
func (v *validator) fields(field, within string, x reflect.Value) {
	switch s := x.Addr().Interface().(type) {
	case *v1.PodSpec:
		v.spec = s
	case *v1.Container:
		v.in = s
	}
	if is, ok := checks[x.Type().Name()]; ok {
		is(v, field, x)
	}
	for i := range x.NumField() {
		f := x.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name != "" && f.IsExported():
			v.values(join(field, name), within+"."+name, x.Field(i))
		case f.Anonymous && f.Type.Kind() == reflect.Struct:
			v.fields(field, within, x.Field(i))
		}
	}
}

// on turns a method that checks a struct into a check.
func on[T any](f func(v *validator, field string, value *T)) check {
	return func(v *validator, field string, x reflect.Value) { f(v, field, x.Addr().Interface().(*T)) }
}

// optional returns a check that accepts the zero value.
func optional(is check) check {
	return func(v *validator, field string, x reflect.Value) {
		if !x.IsZero() {
			is(v, field, x)
		}
	}
}

// filled reports an empty string or list with the message text.
func filled(text string) check {
	return func(v *validator, field string, x reflect.Value) {
		if x.Len() == 0 {
			v.report(field, "%s", text)
		}
	}
}

// atMost reports a list of more than n elements with the message text.
func atMost(n int, text string) check {
	return func(v *validator, field string, x reflect.Value) {
		if x.Len() > n {
			v.report(field, "%s", text)
		}
	}
}

// valid reports the messages of one of apimachinery's checks.
func valid(of func(string) []string) check {
	return func(v *validator, field string, x reflect.Value) { v.valid(field, x.String(), of(x.String())) }
}

// required reports a missing value, or the messages of one of apimachinery's checks.
func required(of func(string) []string) check {
	return func(v *validator, field string, x reflect.Value) { v.required(field, x.String(), of) }
}

// among reports a value that is not in want. It accepts "".
func among[T ~string](want ...T) check {
	return func(v *validator, field string, x reflect.Value) { v.oneOf(field, x.String(), texts(want)) }
}

func between(least, most int64) check {
	return func(v *validator, field string, x reflect.Value) {
		if x.Int() < least || x.Int() > most {
			v.report(field, "%d is not between %d and %d", x.Int(), least, most)
		}
	}
}

func atLeast(least int64) check {
	return func(v *validator, field string, x reflect.Value) {
		if x.Int() < least {
			v.report(field, "%d is less than %d", x.Int(), least)
		}
	}
}

func notNegative(v *validator, field string, x reflect.Value) {
	if x.Int() < 0 {
		v.report(field, "%d is negative", x.Int())
	}
}

// hostName checks a pod's host name. sethostname(2) allows at most 64 bytes.
func hostName(v *validator, field string, x reflect.Value) {
	v.valid(field, x.String(), validation.IsDNS1123Subdomain(x.String()))
	if n := x.Len(); n > 64 {
		v.report(field, "has %d characters, more than 64", n)
	}
}

// pause checks the duration of a sleep hook: the end of the grace period would cut it short.
func pause(v *validator, field string, x reflect.Value) {
	if grace := ptr.Deref(v.spec.TerminationGracePeriodSeconds, 0); x.Int() < 0 || x.Int() > grace {
		v.report(field, "%d is not between 0 and terminationGracePeriodSeconds, %d", x.Int(), grace)
	}
}

func mode(v *validator, field string, x reflect.Value) {
	if x.Int() < 0 || x.Int() > 0o777 {
		v.report(field, "%d is not between 0 and 0777 (511)", x.Int())
	}
}

// nodeName checks the name of another node. This node's name is accepted as it is.
func nodeName(v *validator, field string, x reflect.Value) {
	if name := x.String(); name != "" && name != v.node {
		v.valid(field, name, validation.IsDNS1123Subdomain(name))
	}
}

func address(v *validator, field string, x reflect.Value) {
	if a, err := netip.ParseAddr(x.String()); err != nil || a.Zone() != "" || a.Is4In6() {
		v.report(field, "%q is not an IP address", x)
	}
}

func search(v *validator, field string, x reflect.Value) {
	if s := x.String(); s != "." { // resolvers accept underscores, as in _tcp.example.org
		v.valid(field, s, validation.IsDNS1123SubdomainWithUnderscore(strings.TrimSuffix(s, ".")))
	}
}

func linux(v *validator, field string, x reflect.Value) {
	if x.String() != string(v1.Linux) {
		v.report(field, "%q: crisp runs linux", x)
	}
}

func serviceAccount(v *validator, field string, x reflect.Value) {
	if name := x.String(); name != "" && name != "default" {
		v.report(field, "%q: there are no service accounts without an API server", name)
	}
}

func image(v *validator, field string, x reflect.Value) {
	if name := x.String(); name == "" {
		v.report(field, "is missing")
	} else if strings.TrimSpace(name) != name {
		v.report(field, "%q has blanks around it", name)
	}
}

func exitCodes(v *validator, field string, x reflect.Value) {
	if n := x.Len(); n == 0 || n > 255 {
		v.report(field, "has %d values, want 1 to 255", n)
	}
}

// hasDotDot reports whether a path has an element "..".
func hasDotDot(p string) bool { return slices.Contains(strings.Split(p, "/"), "..") }

func noDotDot(v *validator, field string, x reflect.Value) {
	if hasDotDot(x.String()) {
		v.report(field, "%q: must not contain ..", x)
	}
}

// below reports a path that is absolute or has an element "..", and so could lead out of its
// directory.
func below(v *validator, field string, x reflect.Value) {
	if path.IsAbs(x.String()) {
		v.report(field, "%q: must not begin with /", x)
	}
	noDotDot(v, field, x)
}

// inside is below for a file in a volume. The path may not begin with "..", as the names of the
// volume's internal files do ("..data").
func inside(v *validator, field string, x reflect.Value) {
	switch p := x.String(); {
	case p == "":
		v.report(field, "is missing")
	case strings.HasPrefix(p, "..") && !hasDotDot(p):
		v.report(field, "%q: must not begin with ..", p)
	default:
		below(v, field, x)
	}
}

func hostPath(v *validator, field string, x reflect.Value) {
	if !path.IsAbs(x.String()) {
		v.report(field, "%q is not an absolute path", x)
	}
	noDotDot(v, field, x)
}

// set returns the JSON names of the non-nil pointers in a struct.
func set(x reflect.Value) []string {
	var names []string
	for i := range x.NumField() {
		if f := x.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			name, _, _ := strings.Cut(x.Type().Field(i).Tag.Get("json"), ",")
			names = append(names, name)
		}
	}
	return names
}

func oneSource(v *validator, field string, x reflect.Value) {
	switch n := len(set(x)); n {
	case 0:
		v.report(field, "names no source")
	case 1:
	default:
		v.report(field, "names %d sources", n)
	}
}

func oneAction(v *validator, field string, x reflect.Value) {
	if n := len(set(x)); n != 1 {
		v.report(field, "names %d actions, want one", n)
	}
}

func hook(v *validator, field string, x reflect.Value) {
	if x.Interface().(v1.LifecycleHandler).TCPSocket != nil {
		v.report(field+".tcpSocket", "does nothing: use exec, httpGet or sleep")
		return
	}
	oneAction(v, field, x)
}
