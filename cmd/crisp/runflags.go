package main

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A request has the flags of run.
type request struct {
	namespace, name, restart, class, output, dryRun, pull string
	user, workdir, hostname, network, pid, ipc            string
	memory, cpus, shm, stopSignal, health                 string
	entrypoint                                            string
	ports, volumes, tmpfs, mounts, env, envFiles, labels  []string
	moreLabels, annotations, dns, dnsSearch, hosts        []string // moreLabels has the values of --label: two flags that share a slice would overwrite each other
	sysctls, groups                                       []string
	capAdd, capDrop, security                             []string
	interactive, tty, remove, detach, hostNetwork         bool
	privileged, readOnly                                  bool
	stopTimeout                                           int64
	healthInterval, timeout                               time.Duration
}

// flags adds the flags of docker and podman that a pod can implement, and a few of kubectl run.
func (r *request) flags(fs *pflag.FlagSet) {
	namespaceFlag(fs, &r.namespace)
	fs.StringVar(&r.name, "name", "", "`name` of the pod (default: generated)")
	fs.BoolVarP(&r.detach, "detach", "d", false, "do not wait for the container; the default without -i, -t and --rm")
	streamFlags(fs, &r.interactive, &r.tty, "connect standard input to the container", "allocate a terminal")
	fs.BoolVar(&r.remove, "rm", false, "wait until the container exits, then delete the pod")
	fs.StringArrayVarP(&r.ports, "publish", "p", nil, "publish a `port`: [IP:]HOST:CONTAINER[/udp]")
	fs.StringArrayVarP(&r.volumes, "volume", "v", nil, "mount a host `path`, a claim (created if missing) or an empty directory: HOST:CONTAINER[:ro], NAME:CONTAINER, CONTAINER")
	fs.StringArrayVar(&r.mounts, "mount", nil, "mount by `words`: type=bind|volume|tmpfs,source=…,target=…[,readonly]")
	fs.StringArrayVar(&r.tmpfs, "tmpfs", nil, "mount an empty in-memory `directory`: CONTAINER[:size=64m]")
	fs.StringArrayVarP(&r.env, "env", "e", nil, "set an environment `variable`: NAME=VALUE, or NAME to copy its current value")
	fs.StringArrayVar(&r.envFiles, "env-file", nil, "read variables from a `file` with lines NAME=VALUE")
	fs.StringArrayVarP(&r.labels, "labels", "l", nil, "set a `label`: KEY=VALUE")
	fs.StringArrayVar(&r.moreLabels, "label", nil, "like --labels, docker's name: `KEY=VALUE`")
	fs.StringArrayVar(&r.annotations, "annotation", nil, "set an annotation: `KEY=VALUE`")
	fs.StringVar(&r.restart, "restart", "", "`policy`: Always, OnFailure or Never, or docker's: no, always, on-failure, unless-stopped (default: Never with -i or --rm, else Always)")
	fs.StringVarP(&r.memory, "memory", "m", "", "`memory` limit: 512m, 2g, 512Mi")
	fs.StringVar(&r.cpus, "cpus", "", "limit of `CPUs`: 1.5")
	fs.StringVarP(&r.user, "user", "u", "", "run as `UID[:GID]`")
	fs.StringArrayVar(&r.groups, "group-add", nil, "add a supplementary `GID`")
	fs.StringVarP(&r.workdir, "workdir", "w", "", "working `directory`")
	fs.StringVar(&r.entrypoint, "entrypoint", "", "`program` to run instead of the image's")
	fs.StringVar(&r.hostname, "hostname", "", "host `name` inside the container")
	fs.StringVar(&r.network, "network", "", "`network`: host uses the node's")
	fs.StringVar(&r.network, "net", "", "like --network: `host`")
	fs.BoolVar(&r.hostNetwork, "host-network", false, "use the node's network")
	fs.StringVar(&r.pid, "pid", "", "PID `namespace`: host uses the node's")
	fs.StringVar(&r.ipc, "ipc", "", "IPC `namespace`: host uses the node's")
	fs.StringArrayVar(&r.dns, "dns", nil, "`address` of a name server")
	fs.StringArrayVar(&r.dnsSearch, "dns-search", nil, "search `domain`")
	fs.StringArrayVar(&r.hosts, "add-host", nil, "add a line to the hosts file: `NAME:IP`")
	fs.StringArrayVar(&r.sysctls, "sysctl", nil, "set a kernel parameter: `NAME=VALUE`")
	fs.StringVar(&r.shm, "shm-size", "", "`size` of /dev/shm: 64m")
	fs.BoolVar(&r.privileged, "privileged", false, "run the container privileged")
	fs.StringArrayVar(&r.capAdd, "cap-add", nil, "add a `capability`")
	fs.StringArrayVar(&r.capDrop, "cap-drop", nil, "drop a `capability`, or ALL")
	fs.StringArrayVar(&r.security, "security-opt", nil, "`no-new-privileges`, seccomp=unconfined or apparmor=unconfined|PROFILE")
	fs.BoolVar(&r.readOnly, "read-only", false, "make the root file system read-only")
	fs.StringVar(&r.stopSignal, "stop-signal", "", "stop `signal`, such as SIGINT")
	fs.Int64Var(&r.stopTimeout, "stop-timeout", -1, "grace period in `seconds`")
	fs.StringVar(&r.health, "health-cmd", "", "`command` of the readiness probe")
	fs.DurationVar(&r.healthInterval, "health-interval", 30*time.Second, "period of the readiness probe")
	fs.StringVar(&r.class, "runtime-class", "", "`name` of the RuntimeClass")
	fs.StringVar(&r.class, "runtime", "", "like --runtime-class, docker's `name`")
	fs.StringVar(&r.pull, "pull", "", "`policy`: Always, IfNotPresent or Never, or docker's: always, missing, never")
	fs.StringVar(&r.dryRun, "dry-run", "", "client: only print the pod")
	outputFlag(fs, &r.output, "yaml", "json", "name")
	fs.DurationVar(&r.timeout, "timeout", 5*time.Minute, "how long to wait for the container to start")
}

// buildPod returns the pod that the flags describe, and the claims that its volumes name.
func (r *request) buildPod(image string, args []string) (*v1.Pod, []string, error) {
	b := podBuilder{r: r, box: v1.Container{
		Name: "main", Image: image, Stdin: r.interactive, StdinOnce: r.interactive, TTY: r.tty, WorkingDir: r.workdir,
	}}
	name := cmp.Or(r.name, nameFor(image))
	b.pod = &v1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: r.namespace, Labels: map[string]string{"run": name}},
		Spec:       v1.PodSpec{Hostname: r.hostname},
	}
	if r.class != "" {
		b.pod.Spec.RuntimeClassName = &r.class
	}
	if r.entrypoint != "" {
		b.box.Command = []string{r.entrypoint}
	}
	b.box.Args = slices.Clone(args)
	for i := range b.box.Args { // $$ is the shell's process ID, which a pod would turn into $
		b.box.Args[i] = strings.ReplaceAll(b.box.Args[i], "$$", "$$$$")
	}
	if r.stopTimeout >= 0 {
		b.pod.Spec.TerminationGracePeriodSeconds = &r.stopTimeout
	}
	for _, step := range []func() error{b.policies, b.metadata, b.environment, b.ports, b.volumes, b.resources, b.identity, b.rights, b.host, b.names, b.life} {
		if err := step(); err != nil {
			return nil, nil, err
		}
	}
	if b.security != (v1.SecurityContext{}) {
		b.box.SecurityContext = &b.security
	}
	if !reflect.ValueOf(b.podSecurity).IsZero() {
		b.pod.Spec.SecurityContext = &b.podSecurity
	}
	b.pod.Spec.Containers = []v1.Container{b.box}
	return b.pod, b.claims, nil
}

// nameFor generates a name for a pod from its image.
func nameFor(image string) string {
	base := image[strings.LastIndex(image, "/")+1:]
	base, _, _ = strings.Cut(strings.ReplaceAll(base, "@", ":"), ":")
	return strings.Trim(strings.ToLower(strings.ReplaceAll(base, "_", "-")), "-.") + "-" + strings.ToLower(rand.Text()[:5])
}

// A podBuilder converts a request to a pod.
type podBuilder struct {
	r           *request
	pod         *v1.Pod
	box         v1.Container
	security    v1.SecurityContext // of the container box
	podSecurity v1.PodSecurityContext
	claims      []string
}

// restarts and pullPolicies map docker's names of policies to Kubernetes'.
var (
	restarts     = map[string]v1.RestartPolicy{"no": v1.RestartPolicyNever, "always": v1.RestartPolicyAlways, "on-failure": v1.RestartPolicyOnFailure, "unless-stopped": v1.RestartPolicyAlways}
	pullPolicies = map[string]v1.PullPolicy{"always": v1.PullAlways, "missing": v1.PullIfNotPresent, "never": v1.PullNever}
)

func (b *podBuilder) policies() error {
	policy, known := restarts[b.r.restart]
	switch {
	case known:
	case strings.HasPrefix(b.r.restart, "on-failure:"):
		return usageError("--restart %s: pods count no restarts: want on-failure", b.r.restart)
	case b.r.restart != "":
		policy = v1.RestartPolicy(b.r.restart)
	case b.r.interactive || b.r.remove:
		policy = v1.RestartPolicyNever
	default:
		policy = v1.RestartPolicyAlways
	}
	b.pod.Spec.RestartPolicy = policy
	b.box.ImagePullPolicy = cmp.Or(pullPolicies[b.r.pull], v1.PullPolicy(b.r.pull))
	return nil
}

// eachPair parses the KEY=VALUEs of a flag.
func eachPair(flag string, texts []string, take func(key, value string)) error {
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return usageError("%s %s: want KEY=VALUE", flag, text)
		}
		take(key, value)
	}
	return nil
}

func (b *podBuilder) metadata() error {
	if err := eachPair("-l", slices.Concat(b.r.labels, b.r.moreLabels), func(key, value string) { b.pod.Labels[key] = value }); err != nil {
		return err
	}
	return eachPair("--annotation", b.r.annotations, func(key, value string) {
		metav1.SetMetaDataAnnotation(&b.pod.ObjectMeta, key, value)
	})
}

func (b *podBuilder) environment() error {
	var all []string
	for _, name := range b.r.envFiles {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(data)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				all = append(all, line)
			}
		}
	}
	for _, text := range slices.Concat(all, b.r.env) {
		key, value, ok := strings.Cut(text, "=")
		switch {
		case key == "":
			return usageError("-e %s: want NAME=VALUE", text)
		case !ok:
			if value, ok = os.LookupEnv(key); !ok {
				continue // as in docker
			}
		}
		// A pod would expand $(NAME), and turn $$ into $; docker does not.
		if strings.Contains(value, "$(") || strings.Contains(value, "$$") {
			value = strings.ReplaceAll(value, "$", "$$")
		}
		b.box.Env = slices.DeleteFunc(b.box.Env, func(e v1.EnvVar) bool { return e.Name == key })
		b.box.Env = append(b.box.Env, v1.EnvVar{Name: key, Value: value})
	}
	return nil
}

func (b *podBuilder) ports() error {
	for _, text := range b.r.ports {
		port, err := portOf(text)
		if err != nil {
			return usageError("-p %s: want [IP:]HOST:CONTAINER[/udp]", text)
		}
		b.box.Ports = append(b.box.Ports, port)
	}
	return nil
}

// portOf parses "8080:80", "127.0.0.1:8080:80" and "[::1]:53:53/udp".
func portOf(text string) (v1.ContainerPort, error) {
	rest, protocol, _ := strings.Cut(text, "/")
	i := strings.LastIndexByte(rest, ':')
	if i < 0 {
		return v1.ContainerPort{}, fmt.Errorf("no colon")
	}
	inside, err := strconv.ParseUint(rest[i+1:], 10, 16)
	if err != nil {
		return v1.ContainerPort{}, err
	}
	p := v1.ContainerPort{ContainerPort: int32(inside), Protocol: v1.Protocol(strings.ToUpper(protocol))}
	host := rest[:i]
	if j := strings.LastIndexByte(host, ':'); j >= 0 {
		ip, err := netip.ParseAddr(strings.Trim(host[:j], "[]"))
		if err != nil {
			return p, err
		}
		p.HostIP, host = ip.String(), host[j+1:]
	}
	outside, err := strconv.ParseUint(host, 10, 16)
	p.HostPort = int32(outside)
	return p, err
}

func (b *podBuilder) volumes() error {
	for _, text := range b.r.volumes {
		if err := b.volume(text); err != nil {
			return err
		}
	}
	for _, text := range b.r.tmpfs {
		target, options, _ := strings.Cut(text, ":")
		size := ""
		for option := range strings.SplitSeq(options, ",") {
			if value, ok := strings.CutPrefix(option, "size="); ok {
				size = value
			}
		}
		if err := b.memory("--tmpfs "+text, target, size); err != nil {
			return err
		}
	}
	for _, text := range b.r.mounts {
		if err := b.mountOf(text); err != nil {
			return err
		}
	}
	if b.r.shm != "" {
		return b.memory("--shm-size "+b.r.shm, "/dev/shm", b.r.shm)
	}
	return nil
}

func (b *podBuilder) mount(source v1.VolumeSource, target string, readOnly bool) {
	name := "v" + strconv.Itoa(len(b.pod.Spec.Volumes))
	b.pod.Spec.Volumes = append(b.pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
	b.box.VolumeMounts = append(b.box.VolumeMounts, v1.VolumeMount{Name: name, MountPath: target, ReadOnly: readOnly})
}

// bind mounts a path of the host, a claim, or an empty directory if source is "".
func (b *podBuilder) bind(source, target string, readOnly bool) error {
	var from v1.VolumeSource
	switch {
	case source == "":
		from.EmptyDir = &v1.EmptyDirVolumeSource{}
	case strings.Contains(source, "/"):
		full, err := filepath.Abs(source)
		if err != nil {
			return err
		}
		from.HostPath = &v1.HostPathVolumeSource{Path: full}
	default:
		b.claims = append(b.claims, source)
		from.PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{ClaimName: source}
	}
	b.mount(from, target, readOnly)
	return nil
}

// volume parses "/h:/c", "./h:/c:ro", "data:/c" and "/c".
func (b *podBuilder) volume(text string) error {
	words := strings.Split(text, ":")
	readOnly := false
	if len(words) == 3 {
		for option := range strings.SplitSeq(words[2], ",") {
			switch option {
			case "ro":
				readOnly = true
			case "rw", "z", "Z": // SELinux labels come from the pod
			default:
				return usageError("-v %s: option %s: want ro or rw", text, option)
			}
		}
	}
	target := words[min(len(words)-1, 1)]
	if len(words) > 3 || !path.IsAbs(target) || words[0] == "" {
		return usageError("-v %s: want HOST:CONTAINER[:ro]", text)
	}
	if len(words) == 1 {
		return b.bind("", target, false)
	}
	return b.bind(words[0], target, readOnly)
}

// memory mounts a tmpfs; size "" means no limit.
func (b *podBuilder) memory(flag, target, size string) error {
	dir := &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}
	if size != "" {
		q, err := sizeOf(size)
		if err != nil {
			return usageError("%s: %v", flag, err)
		}
		dir.SizeLimit = &q
	}
	if !path.IsAbs(target) {
		return usageError("%s: want an absolute path", flag)
	}
	b.mount(v1.VolumeSource{EmptyDir: dir}, target, false)
	return nil
}

// mountOf parses "type=bind,source=/h,target=/c,readonly".
func (b *podBuilder) mountOf(text string) error {
	kind, source, target, size, readOnly := "volume", "", "", "", false
	for word := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "type":
			kind = value
		case "source", "src":
			source = value
		case "target", "destination", "dst":
			target = value
		case "tmpfs-size":
			size = value
		case "readonly", "ro":
			readOnly = value != "false"
		default:
			return usageError("--mount %s: %s is not known", text, key)
		}
	}
	switch {
	case !path.IsAbs(target):
		return usageError("--mount %s: target: want an absolute path", text)
	case kind == "tmpfs":
		return b.memory("--mount "+text, target, size)
	case kind == "volume" && source == "": // a new empty directory
	case kind != "bind" && kind != "volume" || source == "" || (kind == "bind") != strings.Contains(source, "/"):
		return usageError("--mount %s: want type=bind with a path, type=volume with a name, or type=tmpfs", text)
	}
	return b.bind(source, target, readOnly)
}

// sizeOf parses docker's sizes, where m is 1024², and Kubernetes' with Mi and Gi. In a Kubernetes
// quantity m would mean thousandths.
func sizeOf(text string) (resource.Quantity, error) {
	if n, err := units.RAMInBytes(text); err == nil {
		return *resource.NewQuantity(n, resource.BinarySI), nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 {
		return q, fmt.Errorf("%q is no size: want 512m, 2g or 512Mi", text)
	}
	return q, nil
}

func (b *podBuilder) resources() error {
	limits := v1.ResourceList{}
	if b.r.memory != "" {
		q, err := sizeOf(b.r.memory)
		if err != nil {
			return usageError("--memory %v", err)
		}
		limits[v1.ResourceMemory] = q
	}
	if b.r.cpus != "" {
		q, err := resource.ParseQuantity(b.r.cpus)
		if err != nil || q.Sign() <= 0 {
			return usageError("--cpus %q: want a number such as 1.5", b.r.cpus)
		}
		limits[v1.ResourceCPU] = q
	}
	if len(limits) > 0 {
		b.box.Resources.Limits = limits
	}
	return nil
}

func (b *podBuilder) identity() error {
	number := func(flag, text string) (*int64, error) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, usageError("%s: %q is no number: a pod has no user by name", flag, text)
		}
		return &n, nil
	}
	if b.r.user != "" {
		user, group, grouped := strings.Cut(b.r.user, ":")
		var err error
		if b.security.RunAsUser, err = number("--user", user); err != nil {
			return err
		}
		if grouped {
			if b.security.RunAsGroup, err = number("--user", group); err != nil {
				return err
			}
		}
	}
	for _, text := range b.r.groups {
		n, err := number("--group-add", text)
		if err != nil {
			return err
		}
		b.podSecurity.SupplementalGroups = append(b.podSecurity.SupplementalGroups, *n)
	}
	return nil
}

func (b *podBuilder) rights() error {
	if b.r.privileged {
		b.security.Privileged = new(true)
	}
	if b.r.readOnly {
		b.security.ReadOnlyRootFilesystem = new(true)
	}
	if len(b.r.capAdd)+len(b.r.capDrop) > 0 {
		b.security.Capabilities = &v1.Capabilities{Add: capabilities(b.r.capAdd), Drop: capabilities(b.r.capDrop)}
	}
	for _, text := range b.r.security {
		key, value, _ := strings.Cut(strings.Replace(text, ":", "=", 1), "=")
		switch {
		case key == "no-new-privileges" && value != "false":
			b.security.AllowPrivilegeEscalation = new(false)
		case key == "seccomp" && value == "unconfined":
			b.security.SeccompProfile = &v1.SeccompProfile{Type: v1.SeccompProfileTypeUnconfined}
		case key == "apparmor" && value == "unconfined":
			b.security.AppArmorProfile = &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}
		case key == "apparmor" && value != "":
			b.security.AppArmorProfile = &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: &value}
		default:
			return usageError("--security-opt %s: want no-new-privileges, seccomp=unconfined or apparmor=PROFILE", text)
		}
	}
	return nil
}

func capabilities(names []string) (caps []v1.Capability) {
	for _, name := range names {
		caps = append(caps, v1.Capability(strings.TrimPrefix(strings.ToUpper(name), "CAP_")))
	}
	return caps
}

// host sets the pod's use of the node's namespaces.
func (b *podBuilder) host() error {
	for _, ns := range []struct {
		flag, value string
		on          *bool
	}{
		{"--network", b.r.network, &b.pod.Spec.HostNetwork}, {"--pid", b.r.pid, &b.pod.Spec.HostPID}, {"--ipc", b.r.ipc, &b.pod.Spec.HostIPC},
	} {
		switch ns.value {
		case "host":
			*ns.on = true
		case "", "bridge", "default", "private":
		default:
			return usageError("%s %s: a pod has its own, or the host's: want host", ns.flag, ns.value)
		}
	}
	b.pod.Spec.HostNetwork = b.pod.Spec.HostNetwork || b.r.hostNetwork
	return eachPair("--sysctl", b.r.sysctls, func(key, value string) {
		b.podSecurity.Sysctls = append(b.podSecurity.Sysctls, v1.Sysctl{Name: key, Value: value})
	})
}

// names sets the pod's DNS configuration and host aliases.
func (b *podBuilder) names() error {
	if len(b.r.dns)+len(b.r.dnsSearch) > 0 {
		b.pod.Spec.DNSConfig = &v1.PodDNSConfig{Nameservers: b.r.dns, Searches: b.r.dnsSearch}
		if len(b.r.dns) > 0 {
			b.pod.Spec.DNSPolicy = v1.DNSNone
		}
	}
	for _, text := range b.r.hosts {
		name, ip, ok := strings.Cut(text, ":")
		if _, err := netip.ParseAddr(strings.Trim(ip, "[]")); !ok || name == "" || err != nil {
			return usageError("--add-host %s: want NAME:IP", text)
		}
		b.pod.Spec.HostAliases = append(b.pod.Spec.HostAliases, v1.HostAlias{IP: strings.Trim(ip, "[]"), Hostnames: []string{name}})
	}
	return nil
}

// life sets how the container is stopped, and its readiness probe.
func (b *podBuilder) life() error {
	if b.r.stopSignal != "" {
		signal := v1.Signal("SIG" + strings.TrimPrefix(strings.ToUpper(b.r.stopSignal), "SIG"))
		b.box.Lifecycle = &v1.Lifecycle{StopSignal: &signal}
		b.pod.Spec.OS = &v1.PodOS{Name: v1.Linux} // Kubernetes requires the OS with a stop signal
	}
	if b.r.health != "" {
		b.box.ReadinessProbe = &v1.Probe{
			ProbeHandler:  v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"/bin/sh", "-c", b.r.health}}},
			PeriodSeconds: int32(max(b.r.healthInterval/time.Second, 1)),
		}
	}
	return nil
}
