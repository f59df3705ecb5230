package main

import (
	"cmp"
	"crypto/rand"
	"errors"
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

// A request is what run asks for: a pod of one container. Flags whose values need no conversion are
// those of its fields, the others are in converted.
type request struct {
	pod         v1.Pod
	container   v1.Container
	security    v1.SecurityContext // of the container
	podSecurity v1.PodSecurityContext
	dns         v1.PodDNSConfig
	values      map[string]*[]string // of the flags in converted
	claims      []string             // that the volumes name

	output, dryRun          string
	remove, detach          bool
	grace                   int64
	healthInterval, timeout time.Duration
}

// flags adds the flags of docker and podman that a pod can implement, and a few of kubectl run.
func (r *request) flags(fs *pflag.FlagSet) {
	namespaceFlag(fs, &r.pod.Namespace)
	fs.StringVar(&r.pod.Name, "name", "", "`name` of the pod (default: generated)")
	fs.BoolVarP(&r.detach, "detach", "d", false, "do not wait for the container; the default without -i, -t and --rm")
	streamFlags(fs, &r.container.Stdin, &r.container.TTY, "connect standard input to the container", "allocate a terminal")
	fs.BoolVar(&r.remove, "rm", false, "wait until the container exits, then delete the pod")
	fs.StringVarP(&r.container.WorkingDir, "workdir", "w", "", "working `directory`")
	fs.StringVar(&r.pod.Spec.Hostname, "hostname", "", "host `name` inside the container")
	fs.BoolVar(&r.pod.Spec.HostNetwork, "host-network", false, "use the node's network")
	fs.StringArrayVar(&r.dns.Nameservers, "dns", nil, "`address` of a name server")
	fs.StringArrayVar(&r.dns.Searches, "dns-search", nil, "search `domain`")
	fs.BoolFunc("privileged", "run the container privileged", boolOf(&r.security.Privileged))
	fs.BoolFunc("read-only", "make the root file system read-only", boolOf(&r.security.ReadOnlyRootFilesystem))
	fs.Int64Var(&r.grace, "stop-timeout", -1, "grace period in `seconds`")
	fs.DurationVar(&r.healthInterval, "health-interval", 30*time.Second, "period of the readiness probe")
	fs.StringVar(&r.dryRun, "dry-run", "", "client: only print the pod")
	outputFlag(fs, &r.output, "yaml", "json", "name")
	fs.DurationVar(&r.timeout, "timeout", 5*time.Minute, "how long to wait for the container to start")
	r.values = map[string]*[]string{}
	for _, f := range converted {
		r.values[f.name] = fs.StringArrayP(f.name, f.short, nil, f.about)
	}
	// Of two names of one flag, the last that is given counts.
	fs.Var(fs.Lookup("network").Value, "net", "like --network: `host`")
	fs.Var(fs.Lookup("runtime-class").Value, "runtime", "like --runtime-class, docker's `name`")
}

func boolOf(to **bool) func(string) error {
	return func(text string) error {
		value, err := strconv.ParseBool(text)
		if *to = nil; value {
			*to = &value
		}
		return err
	}
}

// converted has the flags whose values are converted, in the order in which they are applied: a
// variable of -e overrides one of a file.
var converted = []struct {
	name, short string
	many        bool // of several values each is applied, else the last unless it is empty
	about       string
	set         func(r *request, text string) error
}{
	{"publish", "p", true, "publish a `port`: [IP:]HOST:CONTAINER[/udp]", (*request).publish},
	{"volume", "v", true, "mount a host `path`, a claim (created if missing) or an empty directory: HOST:CONTAINER[:ro], NAME:CONTAINER, CONTAINER", (*request).volume},
	{"tmpfs", "", true, "mount an empty in-memory `directory`: CONTAINER[:size=64m]", (*request).tmpfs},
	{"mount", "", true, "mount by `words`: type=bind|volume|tmpfs,source=…,target=…[,readonly]", (*request).mountOf},
	{"shm-size", "", false, "`size` of /dev/shm: 64m", func(r *request, text string) error { return r.memory("/dev/shm", text) }},
	{"env-file", "", true, "read variables from a `file` with lines NAME=VALUE", (*request).envFile},
	{"env", "e", true, "set an environment `variable`: NAME=VALUE, or NAME to copy its current value", (*request).env},
	{"labels", "l", true, "set a `label`: KEY=VALUE", pair((*request).label)},
	{"label", "", true, "like --labels, docker's name: `KEY=VALUE`", pair((*request).label)},
	{"annotation", "", true, "set an annotation: `KEY=VALUE`", pair(func(r *request, key, value string) { metav1.SetMetaDataAnnotation(&r.pod.ObjectMeta, key, value) })},
	{"sysctl", "", true, "set a kernel parameter: `NAME=VALUE`", pair(func(r *request, key, value string) {
		r.podSecurity.Sysctls = append(r.podSecurity.Sysctls, v1.Sysctl{Name: key, Value: value})
	})},
	{"restart", "", false, "`policy`: Always, OnFailure or Never, or docker's: no, always, on-failure, unless-stopped (default: Never with -i or --rm, else Always)", (*request).restart},
	{"pull", "", false, "`policy`: Always, IfNotPresent or Never, or docker's: always, missing, never", plain(func(r *request, text string) {
		r.container.ImagePullPolicy = cmp.Or(pullPolicies[text], v1.PullPolicy(text))
	})},
	{"memory", "m", false, "`memory` limit: 512m, 2g, 512Mi", (*request).limitMemory},
	{"cpus", "", false, "limit of `CPUs`: 1.5", (*request).limitCPUs},
	{"user", "u", false, "run as `UID[:GID]`", (*request).user},
	{"group-add", "", true, "add a supplementary `GID`", (*request).group},
	{"entrypoint", "", false, "`program` to run instead of the image's", plain(func(r *request, text string) { r.container.Command = []string{text} })},
	{"network", "", false, "`network`: host uses the node's", host(func(s *v1.PodSpec) *bool { return &s.HostNetwork })},
	{"pid", "", false, "PID `namespace`: host uses the node's", host(func(s *v1.PodSpec) *bool { return &s.HostPID })},
	{"ipc", "", false, "IPC `namespace`: host uses the node's", host(func(s *v1.PodSpec) *bool { return &s.HostIPC })},
	{"add-host", "", true, "add a line to the hosts file: `NAME:IP`", (*request).alias},
	{"cap-add", "", true, "add a `capability`", plain(func(r *request, text string) { c := r.capabilities(); c.Add = append(c.Add, capability(text)) })},
	{"cap-drop", "", true, "drop a `capability`, or ALL", plain(func(r *request, text string) { c := r.capabilities(); c.Drop = append(c.Drop, capability(text)) })},
	{"device", "", true, "give a `device`: /dev/NAME[:/dev/NAME][:rwm], a directory of them, or VENDOR/CLASS=DEVICE of CDI", plain(func(r *request, text string) {
		if strings.HasPrefix(text, "/") {
			text = "crisp.io/device=" + text
		}
		r.container.Resources.Limits[v1.ResourceName(text)] = resource.MustParse("1")
	})},
	{"gpus", "", false, "give NVIDIA's GPUs: all, or a `number`", (*request).gpus},
	{"security-opt", "", true, "`no-new-privileges`, seccomp=unconfined or apparmor=unconfined|PROFILE", (*request).securityOption},
	{"stop-signal", "", false, "stop `signal`, such as SIGINT", plain((*request).stopSignal)},
	{"health-cmd", "", false, "`command` of the readiness probe", plain((*request).health)},
	{"runtime-class", "", false, "`name` of the RuntimeClass (created if missing, for the handler of that name)", plain(func(r *request, text string) { r.pod.Spec.RuntimeClassName = &text })},
}

// plain makes a conversion of one that takes every value.
func plain(set func(r *request, text string)) func(*request, string) error {
	return func(r *request, text string) error { set(r, text); return nil }
}

// pair makes a conversion of one of KEY=VALUE.
func pair(set func(r *request, key, value string)) func(*request, string) error {
	return func(r *request, text string) error {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return errors.New("want KEY=VALUE")
		}
		set(r, key, value)
		return nil
	}
}

// host makes a conversion for one of the node's namespaces.
func host(on func(*v1.PodSpec) *bool) func(*request, string) error {
	return func(r *request, text string) error {
		switch text {
		case "host":
			*on(&r.pod.Spec) = true
		case "", "bridge", "default", "private":
		default:
			return errors.New("a pod has its own, or the host's: want host")
		}
		return nil
	}
}

// buildPod completes the pod that the flags describe.
func (r *request) buildPod(image string, args []string) error {
	r.pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	r.pod.Name = cmp.Or(r.pod.Name, nameFor(image))
	r.pod.Labels = map[string]string{"run": r.pod.Name}
	r.container.Name, r.container.Image, r.container.StdinOnce = "main", image, r.container.Stdin
	r.container.Resources.Limits = v1.ResourceList{}
	for _, arg := range args { // $$ is the shell's process ID, which a pod would turn into $
		r.container.Args = append(r.container.Args, strings.ReplaceAll(arg, "$$", "$$$$"))
	}
	r.pod.Spec.RestartPolicy = v1.RestartPolicyAlways
	if r.container.Stdin || r.remove {
		r.pod.Spec.RestartPolicy = v1.RestartPolicyNever
	}
	for _, f := range converted {
		texts := *r.values[f.name]
		if n := len(texts); n > 0 && !f.many {
			texts = slices.DeleteFunc(texts[n-1:], func(text string) bool { return text == "" })
		}
		for _, text := range texts {
			if err := f.set(r, text); errors.As(err, new(*os.PathError)) {
				return err
			} else if err != nil {
				return usageError("--%s %s: %v", f.name, text, err)
			}
		}
	}
	if r.grace >= 0 {
		r.pod.Spec.TerminationGracePeriodSeconds = &r.grace
	}
	if len(r.dns.Nameservers)+len(r.dns.Searches) > 0 {
		r.pod.Spec.DNSConfig = &r.dns
	}
	if len(r.dns.Nameservers) > 0 {
		r.pod.Spec.DNSPolicy = v1.DNSNone
	}
	if r.security != (v1.SecurityContext{}) {
		r.container.SecurityContext = &r.security
	}
	if !reflect.ValueOf(r.podSecurity).IsZero() {
		r.pod.Spec.SecurityContext = &r.podSecurity
	}
	r.pod.Spec.Containers = []v1.Container{r.container}
	return nil
}

// nameFor generates a name for a pod from its image.
func nameFor(image string) string {
	base := image[strings.LastIndex(image, "/")+1:]
	base, _, _ = strings.Cut(strings.ReplaceAll(base, "@", ":"), ":")
	return strings.Trim(strings.ToLower(strings.ReplaceAll(base, "_", "-")), "-.") + "-" + strings.ToLower(rand.Text()[:5])
}

// restarts and pullPolicies map docker's names of policies to Kubernetes'.
var (
	restarts     = map[string]v1.RestartPolicy{"no": v1.RestartPolicyNever, "always": v1.RestartPolicyAlways, "on-failure": v1.RestartPolicyOnFailure, "unless-stopped": v1.RestartPolicyAlways}
	pullPolicies = map[string]v1.PullPolicy{"always": v1.PullAlways, "missing": v1.PullIfNotPresent, "never": v1.PullNever}
)

func (r *request) restart(text string) error {
	if strings.HasPrefix(text, "on-failure:") {
		return errors.New("pods count no restarts: want on-failure")
	}
	r.pod.Spec.RestartPolicy = cmp.Or(restarts[text], v1.RestartPolicy(text), r.pod.Spec.RestartPolicy)
	return nil
}

// gpus gives NVIDIA's GPUs, as docker does, by the names that nvidia-ctk gives them.
func (r *request) gpus(text string) error {
	if text == "all" {
		r.container.Resources.Limits["nvidia.com/gpu=all"] = resource.MustParse("1")
		return nil
	}
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil || n == 0 {
		return errors.New("want all or a number")
	}
	r.container.Resources.Limits["nvidia.com/gpu"] = *resource.NewQuantity(int64(n), resource.DecimalSI)
	return nil
}

func (r *request) label(key, value string) { r.pod.Labels[key] = value }

func (r *request) envFile(name string) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	for n, line := range strings.Split(string(data), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		err := r.env(line)
		if key, _, _ := strings.Cut(line, "="); strings.ContainsAny(key, " \t") {
			err = fmt.Errorf("the name %q has a blank", key)
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %w", name, n+1, err)
		}
	}
	return nil
}

func (r *request) env(text string) error {
	key, value, ok := strings.Cut(text, "=")
	if key == "" {
		return errors.New("want NAME=VALUE")
	}
	if !ok {
		if value, ok = os.LookupEnv(key); !ok {
			return nil // as in docker
		}
	}
	// A pod would expand $(NAME), and turn $$ into $; docker does not.
	if strings.Contains(value, "$(") || strings.Contains(value, "$$") {
		value = strings.ReplaceAll(value, "$", "$$")
	}
	r.container.Env = slices.DeleteFunc(r.container.Env, func(e v1.EnvVar) bool { return e.Name == key })
	r.container.Env = append(r.container.Env, v1.EnvVar{Name: key, Value: value})
	return nil
}

func (r *request) publish(text string) error {
	port, err := portOf(text)
	if err != nil {
		return errors.New("want [IP:]HOST:CONTAINER[/udp]")
	}
	r.container.Ports = append(r.container.Ports, port)
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

func (r *request) mount(source v1.VolumeSource, target string, readOnly bool) {
	name := "v" + strconv.Itoa(len(r.pod.Spec.Volumes))
	r.pod.Spec.Volumes = append(r.pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
	r.container.VolumeMounts = append(r.container.VolumeMounts, v1.VolumeMount{Name: name, MountPath: target, ReadOnly: readOnly})
}

// bind mounts a path of the host, a claim, or an empty directory if source is "".
func (r *request) bind(source, target string, readOnly bool) error {
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
		r.claims = append(r.claims, source)
		from.PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{ClaimName: source}
	}
	r.mount(from, target, readOnly)
	return nil
}

// volume parses "/h:/c", "./h:/c:ro", "data:/c" and "/c".
func (r *request) volume(text string) error {
	words := strings.Split(text, ":")
	readOnly := false
	if len(words) == 3 {
		for option := range strings.SplitSeq(words[2], ",") {
			switch option {
			case "ro":
				readOnly = true
			case "rw", "z", "Z": // SELinux labels come from the pod
			default:
				return fmt.Errorf("option %s: want ro or rw", option)
			}
		}
	}
	target := words[min(len(words)-1, 1)]
	if len(words) > 3 || !path.IsAbs(target) || words[0] == "" {
		return errors.New("want HOST:CONTAINER[:ro]")
	}
	if len(words) == 1 {
		return r.bind("", target, false)
	}
	return r.bind(words[0], target, readOnly)
}

// tmpfs parses "/c" and "/c:rw,size=64m".
func (r *request) tmpfs(text string) error {
	target, options, _ := strings.Cut(text, ":")
	size := ""
	for option := range strings.SplitSeq(options, ",") {
		if value, ok := strings.CutPrefix(option, "size="); ok {
			size = value
		}
	}
	return r.memory(target, size)
}

// memory mounts a tmpfs; size "" means no limit.
func (r *request) memory(target, size string) error {
	dir := &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}
	if size != "" {
		q, err := sizeOf(size)
		if err != nil {
			return err
		}
		dir.SizeLimit = &q
	}
	if !path.IsAbs(target) {
		return errors.New("want an absolute path")
	}
	r.mount(v1.VolumeSource{EmptyDir: dir}, target, false)
	return nil
}

// mountOf parses "type=bind,source=/h,target=/c,readonly".
func (r *request) mountOf(text string) error {
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
			return fmt.Errorf("%s is not known", key)
		}
	}
	switch {
	case !path.IsAbs(target):
		return errors.New("target: want an absolute path")
	case kind == "tmpfs":
		return r.memory(target, size)
	case kind == "volume" && source == "": // a new empty directory
	case kind != "bind" && kind != "volume" || source == "" || (kind == "bind") != strings.Contains(source, "/"):
		return errors.New("want type=bind with a path, type=volume with a name, or type=tmpfs")
	}
	return r.bind(source, target, readOnly)
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

func (r *request) limitMemory(text string) error {
	q, err := sizeOf(text)
	r.container.Resources.Limits[v1.ResourceMemory] = q
	return err
}

func (r *request) limitCPUs(text string) error {
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() <= 0 {
		return errors.New("want a number such as 1.5")
	}
	r.container.Resources.Limits[v1.ResourceCPU] = q
	return nil
}

func (r *request) user(text string) (err error) {
	user, group, grouped := strings.Cut(text, ":")
	if r.security.RunAsUser, err = userID(user); err == nil && grouped {
		r.security.RunAsGroup, err = userID(group)
	}
	return err
}

func userID(text string) (*int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%q is no number: a pod has no user by name", text)
	}
	return &n, nil
}

func (r *request) group(text string) error {
	n, err := userID(text)
	if err == nil {
		r.podSecurity.SupplementalGroups = append(r.podSecurity.SupplementalGroups, *n)
	}
	return err
}

func (r *request) capabilities() *v1.Capabilities {
	r.security.Capabilities = cmp.Or(r.security.Capabilities, &v1.Capabilities{})
	return r.security.Capabilities
}

func capability(name string) v1.Capability {
	return v1.Capability(strings.TrimPrefix(strings.ToUpper(name), "CAP_"))
}

func (r *request) securityOption(text string) error {
	key, value, _ := strings.Cut(strings.Replace(text, ":", "=", 1), "=")
	switch {
	case key == "no-new-privileges" && value != "false":
		r.security.AllowPrivilegeEscalation = new(false)
	case key == "seccomp" && value == "unconfined":
		r.security.SeccompProfile = &v1.SeccompProfile{Type: v1.SeccompProfileTypeUnconfined}
	case key == "apparmor" && value == "unconfined":
		r.security.AppArmorProfile = &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}
	case key == "apparmor" && value != "":
		r.security.AppArmorProfile = &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: &value}
	default:
		return errors.New("want no-new-privileges, seccomp=unconfined or apparmor=PROFILE")
	}
	return nil
}

func (r *request) alias(text string) error {
	name, ip, ok := strings.Cut(text, ":")
	ip = strings.Trim(ip, "[]")
	if _, err := netip.ParseAddr(ip); !ok || name == "" || err != nil {
		return errors.New("want NAME:IP")
	}
	r.pod.Spec.HostAliases = append(r.pod.Spec.HostAliases, v1.HostAlias{IP: ip, Hostnames: []string{name}})
	return nil
}

func (r *request) stopSignal(text string) {
	signal := v1.Signal("SIG" + strings.TrimPrefix(strings.ToUpper(text), "SIG"))
	r.container.Lifecycle = &v1.Lifecycle{StopSignal: &signal}
	r.pod.Spec.OS = &v1.PodOS{Name: v1.Linux} // Kubernetes requires the OS with a stop signal
}

func (r *request) health(command string) {
	r.container.ReadinessProbe = &v1.Probe{
		ProbeHandler:  v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"/bin/sh", "-c", command}}},
		PeriodSeconds: int32(max(r.healthInterval/time.Second, 1)),
	}
}
