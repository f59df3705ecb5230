package kubelet

import (
	"fmt"
	"path"

	v1 "k8s.io/api/core/v1"
)

// exit returns the arguments of a container that exits with code, at once or soon, perhaps after it
// has written something.
func (l *life) exit(code int) []string {
	var args []string
	if l.one(2) {
		args = append(args, "sleep", fmt.Sprintf("%dms", 100+l.IntN(400)))
	}
	if l.one(2) {
		args = append(args, "eprint", "last words")
	}
	return append(args, "exit", fmt.Sprint(code))
}

func (l *life) ends() string {
	l.pod.Spec.RestartPolicy = pick(l.Rand, v1.RestartPolicyOnFailure, v1.RestartPolicyNever)
	for i := range l.pod.Spec.Containers {
		only(&l.pod.Spec.Containers[i], l.exit(0)...)
	}
	for i := range l.pod.Spec.InitContainers { // sidecars, which may end before their first probe
		l.pod.Spec.InitContainers[i].LivenessProbe, l.pod.Spec.InitContainers[i].ReadinessProbe = nil, nil
	}
	return "phase Succeeded"
}

func (l *life) fails() string {
	l.ends()
	l.pod.Spec.RestartPolicy = v1.RestartPolicyNever
	l.pod.Spec.Containers[0].Args = l.exit(1 + l.IntN(100))
	return "phase Failed"
}

// neverBegins makes the first container wait for something that does not exist.
func (l *life) neverBegins() string {
	c := &l.pod.Spec.Containers[0]
	only(c, runsOn...)
	switch l.IntN(7) {
	case 0:
		c.Image, c.ImagePullPolicy = "crisp.test/absent:1", v1.PullNever
		return "waiting ErrImageNeverPull"
	case 1:
		c.Image = "Not A Name"
		return "waiting InvalidImageName"
	case 2:
		l.root()
		c.SecurityContext = &v1.SecurityContext{RunAsNonRoot: new(true)}
		return "waiting CreateContainerConfigError"
	case 3:
		l.volume(v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}, c, v1.VolumeMount{SubPathExpr: "a/$(NOBODY)"})
		return "waiting CreateContainerConfigError"
	case 4:
		l.volume(v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/no/such/directory", Type: new(v1.HostPathDirectory)}}, c, v1.VolumeMount{})
		return "waiting " + l.first()
	case 5:
		l.volume(v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}, c, v1.VolumeMount{MountPropagation: new(v1.MountPropagationHostToContainer)})
		return "ready" // where / is private the container does start
	}
	c.Command, c.Args = []string{"/no/such/program"}, nil
	if l.pod.Spec.RestartPolicy == v1.RestartPolicyNever {
		return "ended c0"
	}
	return "loops"
}

// first returns the reason with which containers wait for the sandbox.
func (l *life) first() string {
	if len(l.pod.Spec.InitContainers) > 0 {
		return "PodInitializing"
	}
	return "ContainerCreating"
}

// root makes the pod run as the image's user, which is root.
func (l *life) root() {
	if sc := l.pod.Spec.SecurityContext; sc != nil {
		sc.RunAsUser, sc.RunAsGroup, sc.RunAsNonRoot = nil, nil, nil
	}
}

// restarts sets a policy that restarts failed containers.
func (l *life) restarts() {
	if l.pod.Spec.RestartPolicy == v1.RestartPolicyNever {
		l.pod.Spec.RestartPolicy = v1.RestartPolicyAlways
	}
}

func (l *life) crashes() string {
	l.restarts()
	only(&l.pod.Spec.Containers[0], l.exit(1+l.IntN(100))...)
	return "loops"
}

// isKilled makes a probe kill the first container, repeatedly if it is restarted.
func (l *life) isKilled() string {
	c := &l.pod.Spec.Containers[0]
	only(c, pick(l.Rand, runsOn, []string{"ignore-term", "sleep", "for-ever"})...)
	l.pod.Spec.TerminationGracePeriodSeconds = new(int64(2)) // shorter than quiet
	probe := &v1.Probe{PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: 20}
	probe.Exec = &v1.ExecAction{Command: []string{"/testbin", "exit", "1"}}
	if l.one(2) {
		probe.TerminationGracePeriodSeconds = new(int64(1))
	}
	if l.one(3) {
		c.StartupProbe = probe
	} else {
		c.LivenessProbe = probe
	}
	if l.pod.Spec.RestartPolicy == v1.RestartPolicyNever {
		return "ended c0"
	}
	return "loops"
}

// unready adds a probe that always fails, but too rarely to reach its threshold.
func (l *life) unready() string {
	c := &l.pod.Spec.Containers[0]
	only(c, runsOn...)
	probe := &v1.Probe{PeriodSeconds: 1, FailureThreshold: 1000, TimeoutSeconds: 20}
	probe.Exec = &v1.ExecAction{Command: []string{"/testbin", "exit", "1"}}
	if l.one(2) {
		c.StartupProbe = probe
	} else {
		c.ReadinessProbe = probe
	}
	return "running c0"
}

// standsStill adds an init container that does not end.
func (l *life) standsStill() string {
	c := l.container("still")
	l.pod.Spec.InitContainers = append(l.pod.Spec.InitContainers, c)
	return "running still"
}

// late sets a deadline that passes once everything runs.
func (l *life) late() string {
	l.pod.Spec.ActiveDeadlineSeconds = new(int64(20))
	return "phase Failed"
}

func (l *life) initFails() string {
	c := l.container("broken")
	c.Args = l.exit(1 + l.IntN(100))
	l.pod.Spec.InitContainers = append(l.pod.Spec.InitContainers, c)
	if l.pod.Spec.RestartPolicy == v1.RestartPolicyNever {
		return "phase Failed"
	}
	return "loops"
}

func (l *life) oneEnds() string {
	spec := &l.pod.Spec
	spec.RestartPolicy = pick(l.Rand, v1.RestartPolicyOnFailure, v1.RestartPolicyNever)
	if len(spec.Containers) == 1 {
		spec.Containers = append(spec.Containers, l.container("other"))
	}
	code := 0
	if spec.RestartPolicy == v1.RestartPolicyNever {
		code = l.IntN(2)
	}
	only(&spec.Containers[0], l.exit(code)...)
	return "ended c0"
}

// rules makes a restart rule restart the first container against its policy, or does not match it.
func (l *life) rules() string {
	c := &l.pod.Spec.Containers[0]
	only(c, l.exit(42)...)
	operator := pick(l.Rand, v1.ContainerRestartRuleOnExitCodesOpIn, v1.ContainerRestartRuleOnExitCodesOpNotIn)
	c.RestartPolicy = new(v1.ContainerRestartPolicyNever)
	c.RestartPolicyRules = []v1.ContainerRestartRule{{Action: v1.ContainerRestartRuleActionRestart, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: operator, Values: []int32{42}}}}
	if operator == v1.ContainerRestartRuleOnExitCodesOpIn {
		return "loops"
	}
	return "ended c0"
}

// volumes adds volumes of all kinds that the kubelet supports without an API server.
func (l *life) volumes() {
	spec := &l.pod.Spec
	items := []v1.DownwardAPIVolumeFile{
		{Path: "name", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}},
		{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
		{Path: "a/limit", ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "c0", Resource: "limits.memory"}},
	}
	sources := []v1.VolumeSource{
		{}, // defaults to an emptyDir
		{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: quantity("10Mi")}},
		{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: quantity("50Mi")}},
		{HostPath: &v1.HostPathVolumeSource{Path: "/proc"}},
		{HostPath: &v1.HostPathVolumeSource{Path: "HOSTDIR/dir", Type: new(v1.HostPathDirectoryOrCreate)}},
		{HostPath: &v1.HostPathVolumeSource{Path: "HOSTDIR/file", Type: new(v1.HostPathFileOrCreate)}},
		{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: items, DefaultMode: pick(l.Rand, nil, new(int32(0o400)))}},
		{Image: &v1.ImageVolumeSource{Reference: testImage, PullPolicy: v1.PullNever}},
	}
	for range max(0, l.IntN(6)-2) {
		source := pick(l.Rand, sources...)
		if spec.HostUsers != nil && source.HostPath != nil {
			continue // the file system of the host may not support ID-mapped mounts
		}
		mount := l.mount(source)
		l.volume(source, &spec.Containers[l.IntN(len(spec.Containers))], mount)
		if len(spec.InitContainers) > 0 && l.one(2) {
			l.volume(source, &spec.InitContainers[l.IntN(len(spec.InitContainers))], mount)
		}
	}
}

// mount returns a random mount of a volume, without its name and path.
func (l *life) mount(of v1.VolumeSource) v1.VolumeMount {
	m := v1.VolumeMount{ReadOnly: l.one(3)}
	if m.ReadOnly && l.one(2) {
		m.RecursiveReadOnly = new(pick(l.Rand, v1.RecursiveReadOnlyDisabled, v1.RecursiveReadOnlyIfPossible))
	}
	switch {
	case of.Image != nil, of.HostPath != nil && path.Base(of.HostPath.Path) == "file":
	case of.HostPath != nil && of.HostPath.Path != "/proc" && m.RecursiveReadOnly == nil && l.one(3):
		m.MountPropagation = new(pick(l.Rand, v1.MountPropagationNone, v1.MountPropagationHostToContainer))
	case of.HostPath == nil && of.DownwardAPI == nil && l.one(3):
		m.SubPath = pick(l.Rand, "sub", "a/b")
	}
	return m
}

// volume adds a volume, and a mount of it to the container.
func (l *life) volume(source v1.VolumeSource, c *v1.Container, m v1.VolumeMount) {
	spec := &l.pod.Spec
	m.Name = fmt.Sprintf("v%d", len(spec.Volumes))
	m.MountPath = "/volumes/" + m.Name
	spec.Volumes = append(spec.Volumes, v1.Volume{Name: m.Name, VolumeSource: source})
	c.VolumeMounts = append(c.VolumeMounts, m)
}
