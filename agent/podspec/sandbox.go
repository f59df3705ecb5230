package podspec

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// Sandbox translates the pod's sandbox. CreateContainer gets the same config, so it must depend
// only on the pod, the attempt and the node. warnings describe what its DNS configuration leaves
// out.
func (in *Input) Sandbox(attempt uint32) (config *cri.PodSandboxConfig, warnings []string, err error) {
	pod := in.Pod
	dns, warnings := in.dnsConfig()
	host, err := in.kernelHostname()
	if err != nil {
		return nil, nil, err
	}
	_, above := contexts(pod, &v1.Container{})
	security := &cri.LinuxSandboxSecurityContext{
		NamespaceOptions: in.namespaces(),
		RunAsUser:        int64Value(above.RunAsUser),
		RunAsGroup:       int64Value(above.RunAsGroup),
		SelinuxOptions:   selinux(above.SELinuxOptions),
		Privileged:       slices.ContainsFunc(slices.Collect(podsync.Containers(&pod.Spec)), privileged),
		Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
	}
	if security.SupplementalGroups, security.SupplementalGroupsPolicy, err = groups(above); err != nil {
		return nil, nil, err
	}
	sysctls := map[string]string{}
	for _, s := range above.Sysctls {
		sysctls[strings.ReplaceAll(s.Name, "/", ".")] = s.Value
	}
	linux := &cri.LinuxPodSandboxConfig{CgroupParent: in.CgroupParent, SecurityContext: security, Sysctls: sysctls}
	linux.Resources, linux.Overhead = in.PodResources()
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		Hostname:     host,
		LogDirectory: in.LogDir,
		DnsConfig:    dns,
		PortMappings: portMappings(pod),
		Labels:       in.labels(pod.Labels),
		Annotations:  in.sandboxAnnotations(),
		Linux:        linux,
	}, warnings, nil
}

// hostname returns the host name of a pod, cut to 63 bytes as by the kubelet, and its domain
// (SUBDOMAIN.NAMESPACE.svc.CLUSTERDOMAIN); "" without a subdomain.
func (in *Input) hostname() (host, domain string) {
	pod := in.Pod
	if pod.Spec.HostnameOverride != nil {
		return truncateHostname(*pod.Spec.HostnameOverride), ""
	}
	if pod.Spec.Subdomain != "" {
		domain = fmt.Sprintf("%s.%s.svc.%s", pod.Spec.Subdomain, pod.Namespace, in.Node.ClusterDomain)
	}
	return truncateHostname(cmp.Or(pod.Spec.Hostname, pod.Name)), domain
}

func truncateHostname(name string) string {
	if len(name) <= 63 {
		return name
	}
	return strings.TrimRight(name[:63], "-.")
}

// kernelHostname returns the host name to set in the kernel: the short one, or with
// setHostnameAsFQDN the full one. It is "" with the host's network, where the host keeps its
// name.
func (in *Input) kernelHostname() (string, error) {
	pod := in.Pod
	if pod.Spec.HostNetwork {
		return "", nil
	}
	host, domain := in.hostname()
	if !ptr.Deref(pod.Spec.SetHostnameAsFQDN, false) || domain == "" {
		return host, nil
	}
	host += "." + domain
	if len(host) > 64 { // sethostname(2): HOST_NAME_MAX
		return "", fmt.Errorf("pod %s: host name %s is longer than 64 bytes", podsync.KeyOf(pod), host)
	}
	return host, nil
}

func (in *Input) namespaces() *cri.NamespaceOption {
	pod := in.Pod
	o := &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER, UsernsOptions: in.UserNamespace}
	switch {
	case pod.Spec.HostPID:
		o.Pid = cri.NamespaceMode_NODE
	case ptr.Deref(pod.Spec.ShareProcessNamespace, false):
		o.Pid = cri.NamespaceMode_POD
	}
	if pod.Spec.HostNetwork {
		o.Network = cri.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		o.Ipc = cri.NamespaceMode_NODE
	}
	return o
}

// portMappings returns all ports of the sidecars and containers, even those without a host port:
// a network plugin may use them. The kubelet leaves out those of sidecars, so that their host
// ports do not work.
func portMappings(pod *v1.Pod) []*cri.PortMapping {
	var mappings []*cri.PortMapping
	for c := range podsync.Lasting(&pod.Spec) {
		seen := map[string]bool{}
		for _, p := range c.Ports {
			name := cmp.Or(p.Name, fmt.Sprintf("%s %s:%d:%d", p.Protocol, p.HostIP, p.ContainerPort, p.HostPort))
			if seen[name] {
				continue
			}
			seen[name] = true
			mappings = append(mappings, &cri.PortMapping{
				Protocol:      cri.Protocol(cri.Protocol_value[string(p.Protocol)]),
				ContainerPort: p.ContainerPort,
				HostPort:      p.HostPort,
				HostIp:        p.HostIP,
			})
		}
	}
	return mappings
}

// Container translates a container of the pod. It fails if the container's user is, or may be,
// root despite runAsNonRoot, or if the source of a mount is missing.
func (in *Input) Container(c *Container) (*cri.ContainerConfig, error) {
	spec := c.Spec
	if err := verifyNonRoot(in.Pod, spec, c.Image); err != nil {
		return nil, err
	}
	mounts, err := in.mounts(c)
	if err != nil {
		return nil, err
	}
	annotations, err := containerAnnotations(in.Pod, c)
	if err != nil {
		return nil, err
	}
	maps.Copy(annotations, in.Node.LogLimit.Annotations())
	ns := in.namespaces()
	if c.Target != "" && ns.Pid == cri.NamespaceMode_CONTAINER {
		ns.Pid, ns.TargetId = cri.NamespaceMode_TARGET, c.Target
	}
	security, err := in.securityContext(spec, c.Image, ns)
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		m.UidMappings, m.GidMappings = ns.GetUsernsOptions().GetUids(), ns.GetUsernsOptions().GetGids()
	}
	expand := func(list []string) []string {
		var out []string
		for _, s := range list {
			out = append(out, Expand(s, lookup(c.Env)))
		}
		return out
	}
	config := &cri.ContainerConfig{
		Metadata:    &cri.ContainerMetadata{Name: spec.Name, Attempt: c.Attempt},
		Image:       &cri.ImageSpec{Image: c.ImageRef, UserSpecifiedImage: spec.Image},
		Command:     expand(spec.Command),
		Args:        expand(spec.Args),
		WorkingDir:  spec.WorkingDir,
		Envs:        c.Env,
		Mounts:      mounts,
		Labels:      in.labels(map[string]string{LabelContainerName: spec.Name}),
		Annotations: annotations,
		LogPath:     filepath.Join(spec.Name, strconv.Itoa(int(c.Attempt))+".log"),
		Stdin:       spec.Stdin,
		StdinOnce:   spec.StdinOnce,
		Tty:         spec.TTY,
		Linux: &cri.LinuxContainerConfig{
			Resources:       in.Resources(spec),
			SecurityContext: security,
		},
	}
	for _, d := range manifest.Devices(spec.Resources.Limits) {
		for _, name := range d.CDI {
			config.CDIDevices = append(config.CDIDevices, &cri.CDIDevice{Name: name})
		}
		if d.Host != "" {
			config.Devices = append(config.Devices, &cri.Device{HostPath: d.Host, ContainerPath: d.Container, Permissions: d.Permissions})
		}
	}
	if spec.Lifecycle != nil && spec.Lifecycle.StopSignal != nil {
		config.StopSignal = stopSignal(*spec.Lifecycle.StopSignal)
	}
	return config, nil
}

// stopSignal converts the name of a signal. CRI writes SIGRTMINPLUS1 for SIGRTMIN+1.
func stopSignal(s v1.Signal) cri.Signal {
	name := strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(string(s))
	return cri.Signal(cri.Signal_value[name])
}

var propagations = map[v1.MountPropagationMode]cri.MountPropagation{
	v1.MountPropagationNone:            cri.MountPropagation_PROPAGATION_PRIVATE,
	v1.MountPropagationHostToContainer: cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
	v1.MountPropagationBidirectional:   cri.MountPropagation_PROPAGATION_BIDIRECTIONAL,
}

// mounts returns the mounts of volumes in the order of the manifest, then /etc/hosts and
// /etc/resolv.conf unless a volume is mounted there, then the file of the termination message.
func (in *Input) mounts(c *Container) ([]*cri.Mount, error) {
	var mounts []*cri.Mount
	at := map[string]bool{}
	for i := range c.Spec.VolumeMounts {
		m := &c.Spec.VolumeMounts[i]
		mount, err := in.volumeMount(m, c.Sources[i], c.Env)
		if err != nil {
			return nil, err
		}
		at[filepath.Clean(mount.ContainerPath)] = true
		mounts = append(mounts, mount)
	}
	if !at["/etc/hosts"] && c.HostsFile != "" {
		mounts = append(mounts, &cri.Mount{ContainerPath: "/etc/hosts", HostPath: c.HostsFile})
	}
	if !at["/etc"] && !at[resolvConf] && c.ResolvFile != "" {
		own, _ := contexts(in.Pod, c.Spec)
		mounts = append(mounts, &cri.Mount{ContainerPath: resolvConf, HostPath: c.ResolvFile, Readonly: ptr.Deref(own.ReadOnlyRootFilesystem, false)})
	}
	if c.Spec.TerminationMessagePath == "" {
		return mounts, nil
	}
	return append(mounts, &cri.Mount{ContainerPath: Absolute(c.Spec.TerminationMessagePath), HostPath: c.MessageFile}), nil
}

// Absolute returns a path in a container as an absolute path; a relative path starts at its
// root.
func Absolute(path string) string {
	if !filepath.IsAbs(path) {
		return "/" + path
	}
	return path
}

func (in *Input) volumeMount(m *v1.VolumeMount, from Source, env []*cri.KeyValue) (*cri.Mount, error) {
	v, err := VolumeOf(in.Pod, m)
	if err != nil {
		return nil, err
	}
	mount := &cri.Mount{ContainerPath: Absolute(m.MountPath), Readonly: m.ReadOnly || from.ReadOnly}
	if m.MountPropagation != nil {
		mount.Propagation = propagations[*m.MountPropagation]
	}
	if v.Image != nil {
		mount.Image = &cri.ImageSpec{Image: from.Image, UserSpecifiedImage: v.Image.Reference, Annotations: in.Pod.Annotations}
		mount.ImageSubPath, err = SubPath(m, env)
		return mount, err
	}
	mount.HostPath = from.Path
	mount.SelinuxRelabel = in.Node.Kernel.SELinux && v.HostPath == nil
	mount.RecursiveReadOnly, err = in.recursive(m, mount.Readonly)
	return mount, err
}

func VolumeOf(pod *v1.Pod, m *v1.VolumeMount) (*v1.Volume, error) {
	i := slices.IndexFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == m.Name })
	if i < 0 {
		return nil, fmt.Errorf("pod %s has no volume %s", podsync.KeyOf(pod), m.Name)
	}
	return &pod.Spec.Volumes[i], nil
}

// SubPath returns the path below its volume that a container mounts, "" for all of the
// volume. env is the container's environment.
func SubPath(m *v1.VolumeMount, env []*cri.KeyValue) (string, error) {
	if m.SubPathExpr == "" {
		return m.SubPath, nil
	}
	var unknown []string
	path := Expand(m.SubPathExpr, func(name string) (string, bool) {
		value, ok := lookup(env)(name)
		if !ok {
			unknown = append(unknown, name)
		}
		return value, ok
	})
	if len(unknown) > 0 {
		return "", fmt.Errorf("volume %s: subPathExpr %q: the container has no variable %s", m.Name, m.SubPathExpr, strings.Join(unknown, ", "))
	}
	if path == "" {
		return "", fmt.Errorf("volume %s: subPathExpr %q names nothing", m.Name, m.SubPathExpr)
	}
	return path, nil
}

func (in *Input) recursive(m *v1.VolumeMount, readOnly bool) (bool, error) {
	if ptr.Deref(m.RecursiveReadOnly, v1.RecursiveReadOnlyDisabled) == v1.RecursiveReadOnlyDisabled || !readOnly {
		return false, nil
	}
	if !in.RecursiveReadOnly && *m.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled {
		return false, fmt.Errorf("mount %s: the runtime's handler %q has no recursive read-only mounts", m.MountPath, in.Handler)
	}
	return in.RecursiveReadOnly, nil
}
