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

type check func(v *validator, field string, x reflect.Value)

// checks has the checks of structs, by their Go type ("Probe"), and of their fields, by type and
// JSON name ("Probe.periodSeconds"), with "[]" for each element of a list, and "{a,b}" for either of
// both. The fields of an inlined struct belong to the outer type. Nil pointers are not checked.
//
// The checks protect the node and its other pods, and reject values that crisp does not support in
// fields that it supports. An API server checks more. Only the vital checks apply to objects that
// were accepted before (Options.Accepted): those of values that become a path, could crash or
// occupy the agent, or could take resources from other pods.
var checks = expanded(map[string]check{
	"PodSpec":                       on((*validator).podSpec),
	"PodSpec.activeDeadlineSeconds": between(1, math.MaxInt32),
	"PodSpec.containers":            vital(filled("a pod needs at least one container")),
	"NodeAffinity.requiredDuringSchedulingIgnoredDuringExecution": on((*validator).nodeTerms),
	"PodSpec.{hostname,subdomain}":                                optional(valid(validation.IsDNS1123Label)),
	"PodSpec.hostnameOverride":                                    hostName,
	"PodSpec.nodeName":                                            nodeName,
	"PodSpec.priorityClassName":                                   optional(valid(validation.IsDNS1123Subdomain)),
	"PodSpec.{serviceAccount,serviceAccountName}":                 serviceAccount,
	"{PodSpec.runtimeClassName,HostAlias.hostnames[]}":            valid(validation.IsDNS1123Subdomain),
	"{HostAlias.ip,PodDNSConfig.nameservers[]}":                   address,
	"PodDNSConfig.nameservers":                                    atMost(3, "at most 3 are used by resolvers"), // resolv.conf(5): MAXNS
	"PodDNSConfig.searches":                                       atMost(32, "at most 32 are allowed"),
	"PodDNSConfig.searches[]":                                     search,
	"PodOS.name":                                                  linux,
	"AppArmorProfile":                                             on((*validator).appArmor),
	"PodSecurityContext":                                          on((*validator).podSecurity),
	"{PodSecurityContext,SecurityContext}.{runAsGroup,runAsUser}": between(0, math.MaxInt32),
	"PodSecurityContext.{fsGroup,supplementalGroups[]}":           between(0, math.MaxInt32),
	"SeccompProfile":                                              on((*validator).seccomp),

	"Container":                                     on((*validator).container),
	"Container.image":                               image,
	"Container.{livenessProbe,startupProbe}":        on((*validator).restartingProbe),
	"{Container,Volume}.name":                       vital(required(validation.IsDNS1123Label)),
	"Container.readinessProbe":                      on((*validator).readinessProbe),
	"Container.resources":                           on((*validator).resources),
	"Container.restartPolicyRules":                  atMost(20, "has more than 20 rules"),
	"Container.terminationMessagePath":              noDotDot,
	"{ContainerPort.containerPort,GRPCAction.port}": between(1, 65535),
	"ContainerPort.hostIP":                          optional(address),
	"ContainerPort.hostPort":                        optional(between(1, 65535)),
	"ContainerPort.name":                            optional(valid(validation.IsValidPortName)),
	"ContainerResizePolicy.resourceName":            among(v1.ResourceCPU, v1.ResourceMemory),
	"ContainerRestartRule":                          on((*validator).restartRule),
	"ContainerRestartRuleOnExitCodes.values":        exitCodes,
	"{HTTPGetAction,TCPSocketAction}.port":          port,
	"HTTPHeader.name":                               valid(validation.IsHTTPHeaderName),
	"Lifecycle.stopSignal":                          stopSignal,
	"LifecycleHandler":                              hook,
	"Probe.{failureThreshold,successThreshold,terminationGracePeriodSeconds,timeoutSeconds}": atLeast(1),
	"Probe.initialDelaySeconds":         atLeast(0),
	"Probe.periodSeconds":               vital(atLeast(1)),
	"ProbeHandler":                      oneAction,
	"SecurityContext":                   on((*validator).security),
	"SleepAction.seconds":               pause,
	"VolumeMount":                       on((*validator).volumeMount),
	"VolumeMount.{subPath,subPathExpr}": optional(below),

	"{EnvFromSource,EnvVarSource}": oneSource,
	"EnvFromSource.prefix":         optional(valid(validation.IsRelaxedEnvVarName)),
	"EnvVar":                       on((*validator).envVar),
	"EnvVar.name":                  required(validation.IsRelaxedEnvVarName),
	"EnvVarSource.fieldRef":        fieldRef("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
	"FileKeySelector":              on((*validator).fileKey),
	"ResourceFieldSelector":        on((*validator).resourceField),

	"{ConfigMap,Secret}{EnvSource,KeySelector,Projection}.name":                                            required(validation.IsDNS1123Subdomain),
	"{ConfigMapVolumeSource.name,SecretVolumeSource.secretName}":                                           required(validation.IsDNS1123Subdomain),
	"PersistentVolumeClaimVolumeSource.claimName":                                                          vital(required(validation.IsDNS1123Subdomain)),
	"{ConfigMapKeySelector,SecretKeySelector,KeyToPath}.key":                                               required(validation.IsConfigMapKey),
	"{ConfigMapVolumeSource,DownwardAPIVolumeSource,ProjectedVolumeSource,SecretVolumeSource}.defaultMode": mode,
	"{DownwardAPIVolumeFile,KeyToPath}.mode":                                                               mode,
	"{DownwardAPIVolumeFile,KeyToPath}.path":                                                               vital(inside),
	"DownwardAPIVolumeFile":                                                                                on((*validator).downwardFile),
	"DownwardAPIVolumeFile.fieldRef":                                                                       fieldRef("metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations"),
	"EmptyDirVolumeSource":                                                                                 on((*validator).emptyDir),
	"HostPathVolumeSource.path":                                                                            hostPath,
	"ProjectedVolumeSource":                                                                                on((*validator).projected),
	"Volume":                                                                                               on((*validator).volume),

	"{DaemonSetSpec,DeploymentSpec}.revisionHistoryLimit":                                                            atLeast(0),
	"{DeploymentSpec.minReadySeconds,JobSpec.backoffLimit,JobSpec.ttlSecondsAfterFinished}":                          atLeast(0),
	"{DeploymentSpec.replicas,JobSpec.parallelism}":                                                                  vital(between(0, maxPods)),
	"CronJobSpec.{failedJobsHistoryLimit,startingDeadlineSeconds,successfulJobsHistoryLimit}":                        atLeast(0),
	"JobSpec.activeDeadlineSeconds":                                                                                  notNegative,
	"JobSpec.completions":                                                                                            vital(atLeast(0)),
	"{PodDNSConfigOption.name,ExecAction.command,ImageVolumeSource.reference,PersistentVolumeClaimSpec.accessModes}": filled("is missing"),
	"PersistentVolumeClaimSpec.volumeMode":                                                                           filled(`"": want Filesystem`),
	"StatefulSetSpec.{minReadySeconds,revisionHistoryLimit}":                                                         atLeast(0),
	"RollingUpdateStatefulSetStrategy.partition":                                                                     between(0, 0),
	"StatefulSetSpec.replicas":                                                                                       vital(between(0, maxPods)),
	"ServicePort.port":                                                                                               between(1, 65535),
	"RuntimeClass.handler":                                                                                           required(validation.IsDNS1123Label),
})

func expanded(table map[string]check) map[string]check {
	all := map[string]check{}
	for places, is := range table {
		for _, place := range choices(places) {
			all[place] = is
		}
	}
	return all
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
	enum(v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer, v1.ServiceTypeExternalName),
	enum(v1.NotRequired, v1.RestartContainer),
	enum(v1.HostPathDirectoryOrCreate, v1.HostPathDirectory, v1.HostPathFileOrCreate, v1.HostPathFile, v1.HostPathSocket, v1.HostPathCharDev, v1.HostPathBlockDev),
	enum(v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOncePod),
	enum(v1.PersistentVolumeFilesystem),
	enum(appsv1.RollingUpdateDeploymentStrategyType, appsv1.RecreateDeploymentStrategyType),
	enum(appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement),
	enum(appsv1.RollingUpdateStatefulSetStrategyType),
	enum(appsv1.RetainPersistentVolumeClaimRetentionPolicyType),
	enum(batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent),
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

func on[T any](f func(v *validator, field string, value *T)) check {
	return func(v *validator, field string, x reflect.Value) { f(v, field, x.Addr().Interface().(*T)) }
}

func optional(is check) check {
	return func(v *validator, field string, x reflect.Value) {
		if !x.IsZero() {
			is(v, field, x)
		}
	}
}

// when reports the values for which bad is true. The format may have one verb, for the value.
func when(bad func(x reflect.Value) bool, format string) check {
	return func(v *validator, field string, x reflect.Value) {
		if bad(x) {
			v.report(field, format, []any{x}[:strings.Count(format, "%")]...)
		}
	}
}

func filled(text string) check {
	return when(func(x reflect.Value) bool { return x.Len() == 0 }, text)
}

func atMost(n int, text string) check {
	return when(func(x reflect.Value) bool { return x.Len() > n }, text)
}

func valid(of func(string) []string) check {
	return func(v *validator, field string, x reflect.Value) { v.valid(field, x.String(), of(x.String())) }
}

func required(of func(string) []string) check {
	return func(v *validator, field string, x reflect.Value) { v.required(field, x.String(), of) }
}

// among reports a value that is not in want. It accepts "".
func among[T ~string](want ...T) check {
	return func(v *validator, field string, x reflect.Value) { v.oneOf(field, x.String(), texts(want)) }
}

func between(least, most int64) check {
	return when(func(x reflect.Value) bool { return x.Int() < least || x.Int() > most }, fmt.Sprintf("%%d is not between %d and %d", least, most))
}

func atLeast(least int64) check {
	return when(func(x reflect.Value) bool { return x.Int() < least }, fmt.Sprintf("%%d is less than %d", least))
}

var (
	notNegative = when(func(x reflect.Value) bool { return x.Int() < 0 }, "%d is negative")
	mode        = when(func(x reflect.Value) bool { return x.Int() < 0 || x.Int() > 0o777 }, "%d is not between 0 and 0777 (511)")
	noDotDot    = when(func(x reflect.Value) bool { return hasDotDot(x.String()) }, "%q: must not contain ..")
	linux       = when(func(x reflect.Value) bool { return x.String() != string(v1.Linux) }, "%q: crisp runs linux")

	serviceAccount = when(func(x reflect.Value) bool { return x.String() != "" && x.String() != "default" },
		"%q: there are no service accounts without an API server")
)

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

func hasDotDot(p string) bool { return slices.Contains(strings.Split(p, "/"), "..") }

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
