package kubelet

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A life makes random pods. A seed always yields the same pods.
type life struct {
	*rand.Rand
	chance *rand.Rand // source of randomness for turns
	port   int32      // the last one assigned: pods share the node's ports

	pod   *v1.Pod
	kind  string // the kind of its end
	until string // the state that it must reach
	host  bool   // it uses the node's network
}

func newLife(seed uint64) *life {
	return &life{Rand: rand.New(rand.NewPCG(seed, seed)), chance: rand.New(rand.NewPCG(seed, ^seed))}
}

// runsOn has the arguments of a container that runs until it is stopped.
var runsOn = []string{"catch", "sleep", "for-ever"}

// Sidecars have a separate range of ports, see explanationsOfLives.
const (
	firstPort    = 20000
	sidecarPorts = 10000 // above those of containers
)

// ends has the kinds of pods by how they end; a pod's name begins with its kind. Each make changes
// a pod whose containers all keep running, and returns the state to wait for.
var ends = []struct {
	name string
	make func(*life) string
}{
	{"runs", func(*life) string { return "ready" }},
	{"ends", (*life).ends},
	{"fails", (*life).fails},
	{"never-begins", (*life).neverBegins},
	{"crashes", (*life).crashes},
	{"is-killed", (*life).isKilled},
	{"unready", (*life).unready},
	{"stands-still", (*life).standsStill},
	{"late", (*life).late},
	{"init-fails", (*life).initFails},
	{"one-ends", (*life).oneEnds},
	{"rules", (*life).rules},
}

// next returns the i-th pod and the state that it must reach. The kinds alternate.
func (l *life) next(t *testing.T, i int) manifest {
	end := ends[i%len(ends)]
	l.pod = &v1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	l.kind = end.name
	l.host = l.one(8)
	l.settings()
	l.containers()
	l.until = end.make(l)
	l.volumes()
	m := manifest{settles: true, target: l.target()}
	l.pod.Name = fmt.Sprintf("%s-%d", end.name, i)
	if m.turn = l.turns(); m.turn != nil {
		l.pod.Name += "-" + m.turn.name
		if l.pod.Spec.SetHostnameAsFQDN != nil {
			l.pod.Spec.Hostname = "other" // otherwise the host's name would be too long
		}
		if m.turn.make != nil {
			m.turn.make(l)
		}
	}
	if l.host {
		l.pod.Name += "-on-host"
	}
	m.name, m.text, m.until = l.pod.Name, manifestOf(t, l.pod), l.until
	if m.turn != nil && m.turn.edit != nil {
		m.turn.edit(l)
		m.next = manifestOf(t, l.pod)
	}
	return m
}

func (l *life) one(of int) bool { return l.IntN(of) == 0 }

func (l *life) nextPort() int32 {
	l.port++
	return firstPort + l.port
}

// settings sets the pod-level fields.
func (l *life) settings() {
	pod, spec := l.pod, &l.pod.Spec
	spec.TerminationGracePeriodSeconds = new(int64(l.IntN(3) + 2))
	spec.RestartPolicy = pick(l.Rand, "", v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever)
	spec.HostNetwork, spec.HostPID, spec.HostIPC = l.host, l.one(12), l.one(12)
	if !spec.HostPID && l.one(6) {
		spec.ShareProcessNamespace = new(true)
	}
	if l.one(3) {
		pod.Labels = map[string]string{"app": "web", "example.org/tier": "a"}
		pod.Annotations = map[string]string{"example.org/note": "hello, \"world\""}
	}
	if l.one(4) {
		spec.HostAliases = []v1.HostAlias{{IP: "192.0.2.7", Hostnames: []string{"a.test", "b.test"}}, {IP: "2001:db8::7", Hostnames: []string{"c.test"}}}
	}
	if l.one(4) {
		spec.Hostname = "other"
	}
	if l.one(4) {
		spec.Subdomain, spec.SetHostnameAsFQDN = "sub", new(l.one(2))
	}
	spec.DNSPolicy = pick(l.Rand, "", v1.DNSDefault, v1.DNSClusterFirst, v1.DNSClusterFirstWithHostNet, v1.DNSNone)
	if spec.DNSPolicy == v1.DNSNone || l.one(5) {
		spec.DNSConfig = &v1.PodDNSConfig{Nameservers: []string{"192.0.2.99"}, Searches: []string{"x.test"}, Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: new("3")}}}
	}
	if l.one(6) {
		spec.PriorityClassName, spec.Priority = "system-node-critical", new(int32(2000001000))
	}
	if l.one(6) {
		spec.EnableServiceLinks, spec.AutomountServiceAccountToken = new(false), new(false)
	}
	if l.one(6) {
		spec.Resources = &v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("150m"), v1.ResourceMemory: resource.MustParse("900Mi")},
			Limits:   v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("2Gi")},
		}
	}
	spec.SecurityContext = l.podSecurity()
	if !spec.HostPID && !spec.HostIPC && !l.host && l.one(10) {
		spec.HostUsers = new(false)
	}
}

func (l *life) podSecurity() *v1.PodSecurityContext {
	if l.one(2) {
		return nil
	}
	sc := &v1.PodSecurityContext{}
	if l.one(3) {
		sc.RunAsUser, sc.RunAsNonRoot = new(int64(1000+l.IntN(3))), new(true)
	}
	if l.one(4) {
		sc.RunAsGroup = new(int64(2000))
		sc.RunAsUser = new(int64(1000)) // CRI has no group without a user
	}
	if l.one(3) {
		sc.FSGroup = new(int64(3000))
		if l.one(2) {
			sc.FSGroupChangePolicy = new(pick(l.Rand, v1.FSGroupChangeOnRootMismatch, v1.FSGroupChangeAlways))
		}
	}
	if l.one(4) {
		sc.SupplementalGroups = []int64{4000, 4001}
	}
	if l.one(6) {
		sc.SupplementalGroupsPolicy = new(pick(l.Rand, v1.SupplementalGroupsPolicyMerge, v1.SupplementalGroupsPolicyStrict))
	}
	if l.one(4) {
		sc.SeccompProfile = &v1.SeccompProfile{Type: pick(l.Rand, v1.SeccompProfileTypeRuntimeDefault, v1.SeccompProfileTypeUnconfined)}
	}
	if !l.host && l.one(4) {
		sc.Sysctls = []v1.Sysctl{{Name: "net.ipv4.ip_local_port_range", Value: "10000 20000"}, {Name: "net.ipv4.tcp_syncookies", Value: "1"}}
	}
	return sc
}

// containers adds one to three containers and up to two sidecars that keep running, and up to two
// init containers that end.
func (l *life) containers() {
	spec := &l.pod.Spec
	for i := range 1 + l.IntN(3) {
		spec.Containers = append(spec.Containers, l.container(fmt.Sprintf("c%d", i)))
		l.lasting(&spec.Containers[i], false)
	}
	for i := range max(0, l.IntN(5)-2) {
		c := l.container(fmt.Sprintf("s%d", i))
		c.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
		l.lasting(&c, true)
		spec.InitContainers = append(spec.InitContainers, c)
	}
	for i := range max(0, l.IntN(5)-2) {
		c := l.container(fmt.Sprintf("i%d", i))
		c.Args = []string{"print", "ready"}
		spec.InitContainers = append(spec.InitContainers, c)
	}
	l.Shuffle(len(spec.InitContainers), func(i, j int) {
		spec.InitContainers[i], spec.InitContainers[j] = spec.InitContainers[j], spec.InitContainers[i]
	})
}

func (l *life) container(name string) v1.Container {
	c := v1.Container{Name: name, Image: testImage, ImagePullPolicy: pick(l.Rand, v1.PullNever, v1.PullIfNotPresent), Args: runsOn}
	if l.one(3) {
		c.Command = []string{"/testbin"}
	}
	c.Resources = l.resources()
	c.Env = l.env(name)
	if l.one(5) {
		c.WorkingDir = pick(l.Rand, "/", "/etc")
	}
	c.Stdin, c.TTY = l.one(8), l.one(8)
	c.StdinOnce = c.Stdin && l.one(2)
	c.TerminationMessagePolicy = pick(l.Rand, "", v1.TerminationMessageReadFile, v1.TerminationMessageFallbackToLogsOnError)
	if l.one(5) {
		c.TerminationMessagePath = "/tmp/end"
	}
	c.SecurityContext = l.security()
	return c
}

func (l *life) resources() v1.ResourceRequirements {
	of := v1.ResourceRequirements{Requests: v1.ResourceList{}, Limits: v1.ResourceList{}}
	cpu, memory := int64(1+l.IntN(20)), int64(16+l.IntN(20))<<20
	if l.one(2) {
		of.Requests[v1.ResourceCPU] = *resource.NewMilliQuantity(cpu, resource.DecimalSI)
	}
	if l.one(2) {
		of.Requests[v1.ResourceMemory] = *resource.NewQuantity(memory, resource.BinarySI)
	}
	if l.one(4) { // enough to start in time
		of.Limits[v1.ResourceCPU] = *resource.NewMilliQuantity(500+int64(l.IntN(1500)), resource.DecimalSI)
		of.Requests[v1.ResourceCPU] = *resource.NewMilliQuantity(cpu, resource.DecimalSI)
	}
	if l.one(4) {
		of.Limits[v1.ResourceMemory] = *resource.NewQuantity(memory+100<<20+int64(l.IntN(4096)), resource.BinarySI)
	}
	if l.one(5) {
		of.Limits[v1.ResourceEphemeralStorage] = resource.MustParse("100Mi")
	}
	return of
}

func (l *life) env(container string) []v1.EnvVar {
	var env []v1.EnvVar
	if l.one(3) {
		env = append(env, v1.EnvVar{Name: "A", Value: "a"}, v1.EnvVar{Name: "B", Value: "$(A)-$$(A)-$(NONE)"}, v1.EnvVar{Name: "A", Value: "$(A)$(B)"})
	}
	fields := []string{"metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels['app']", "metadata.annotations['example.org/note']", "spec.nodeName", "spec.serviceAccountName"}
	if !l.host { // the standalone kubelet has no address of the node
		fields = append(fields, "status.podIP", "status.podIPs")
	}
	for i := range max(0, l.IntN(5)-2) {
		env = append(env, v1.EnvVar{Name: fmt.Sprintf("FIELD%d", i), ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: pick(l.Rand, fields...)}}})
	}
	for i := range max(0, l.IntN(5)-2) {
		ref := l.resourceField()
		ref.ContainerName = pick(l.Rand, "", container, "c0")
		env = append(env, v1.EnvVar{Name: fmt.Sprintf("RESOURCE%d", i), ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &ref}})
	}
	return env
}

func (l *life) resourceField() v1.ResourceFieldSelector {
	name := pick(l.Rand, "limits.cpu", "limits.memory", "limits.ephemeral-storage", "requests.cpu", "requests.memory", "requests.ephemeral-storage")
	divisors := []string{"", "1", "1k", "1Ki", "1M", "1Mi", "1Gi"}
	if strings.HasSuffix(name, ".cpu") {
		divisors = []string{"", "1", "1m"}
	}
	ref := v1.ResourceFieldSelector{Resource: name}
	if d := pick(l.Rand, divisors...); d != "" {
		ref.Divisor = resource.MustParse(d)
	}
	return ref
}

func (l *life) security() *v1.SecurityContext {
	if l.one(2) {
		return nil
	}
	sc := &v1.SecurityContext{}
	if l.one(4) {
		sc.RunAsUser, sc.RunAsGroup = new(int64(5000)), new(int64(5000))
	}
	if l.one(3) {
		sc.ReadOnlyRootFilesystem = new(true)
	}
	if l.one(3) {
		sc.Capabilities = &v1.Capabilities{Add: []v1.Capability{"NET_ADMIN", "SYS_TIME"}, Drop: pick(l.Rand, nil, []v1.Capability{"ALL"}, []v1.Capability{"CHOWN"})}
	}
	switch {
	case l.one(8):
		sc.Privileged = new(true)
	case l.one(3):
		sc.AllowPrivilegeEscalation = new(l.one(2))
	}
	if l.one(4) {
		sc.SeccompProfile = &v1.SeccompProfile{Type: pick(l.Rand, v1.SeccompProfileTypeRuntimeDefault, v1.SeccompProfileTypeUnconfined)}
	}
	return sc
}

// lasting adds what only a container that keeps running can have: ports, probes and hooks.
func (l *life) lasting(c *v1.Container, sidecar bool) {
	port := l.nextPort()
	if sidecar {
		port += sidecarPorts
	}
	serves := l.one(2)
	if serves {
		c.Args = append([]string{"http", fmt.Sprintf(":%d", port), "hello"}, runsOn...)
		c.Ports = []v1.ContainerPort{{Name: pick(l.Rand, "", "web"), ContainerPort: port, Protocol: pick(l.Rand, "", v1.ProtocolTCP)}}
		if l.one(2) {
			c.Ports[0].HostPort = port
		}
	}
	probe := func() *v1.Probe {
		p := &v1.Probe{PeriodSeconds: 1, FailureThreshold: 120, TimeoutSeconds: 20} // a busy machine must not make it fail
		switch {
		case serves && l.one(3):
			p.HTTPGet = &v1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(port)}
		case serves && l.one(2):
			p.TCPSocket = &v1.TCPSocketAction{Port: intstr.FromInt32(port)}
		default:
			p.Exec = &v1.ExecAction{Command: []string{"/testbin", "print", fmt.Sprint(l.IntN(1000))}}
		}
		return p
	}
	if l.one(4) {
		c.StartupProbe = probe()
	}
	if l.one(4) {
		c.LivenessProbe = probe()
	}
	if l.one(3) {
		c.ReadinessProbe = probe()
	}
	if l.one(3) {
		c.Lifecycle = l.hooks()
	}
}

func (l *life) hooks() *v1.Lifecycle {
	hooks := &v1.Lifecycle{}
	if l.one(2) {
		hooks.PostStart = &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"/testbin", "print", "begins"}}}
	}
	switch l.IntN(3) {
	case 0:
		hooks.PreStop = &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"/testbin", "print", "ends"}}}
	case 1:
		hooks.PreStop = &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 1}}
	}
	if hooks.PostStart == nil && hooks.PreStop == nil {
		hooks.PreStop = &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"/testbin", "print", "ends"}}}
	}
	return hooks
}

// only gives a container these arguments, and removes everything that needs it to keep running.
func only(c *v1.Container, args ...string) {
	c.Args, c.Ports, c.Lifecycle = args, nil, nil
	c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = nil, nil, nil
}
