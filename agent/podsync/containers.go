package podsync

import (
	"iter"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// SystemCritical is the lowest priority with which a pod may preempt others and is never
// evicted: that of system-cluster-critical.
const SystemCritical = 2_000_000_000

func Priority(pod *v1.Pod) int32 { return ptr.Deref(pod.Spec.Priority, 0) }

// IsSidecar reports whether an init container is a sidecar, which runs as long as the pod does:
// its restartPolicy is Always.
func IsSidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// Containers yields a pod's init containers, then its containers.
func Containers(spec *v1.PodSpec) iter.Seq[*v1.Container] {
	return func(yield func(*v1.Container) bool) {
		for _, list := range [][]v1.Container{spec.InitContainers, spec.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// Lasting yields the containers that run while the pod does: its sidecars, then its containers.
func Lasting(spec *v1.PodSpec) iter.Seq[*v1.Container] {
	return func(yield func(*v1.Container) bool) {
		for i := range spec.InitContainers {
			if c := &spec.InitContainers[i]; IsSidecar(c) && !yield(c) {
				return
			}
		}
		for i := range spec.Containers {
			if !yield(&spec.Containers[i]) {
				return
			}
		}
	}
}

// StatusOf returns the status of the container of this name, from the first list that has it;
// nil if none has.
func StatusOf(name string, lists ...[]v1.ContainerStatus) *v1.ContainerStatus {
	for _, list := range lists {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// RuntimeID returns the runtime's ID ("1234") from the container ID of a status ("crisp://1234").
func RuntimeID(id string) string {
	if _, rest, ok := strings.Cut(id, "://"); ok {
		return rest
	}
	return id
}

func Ephemeral(spec *v1.PodSpec) []v1.Container {
	var list []v1.Container
	for _, e := range spec.EphemeralContainers {
		list = append(list, v1.Container(e.EphemeralContainerCommon))
	}
	return list
}

// ContainerOf returns the container of this name, of whatever kind, or nil.
func ContainerOf(spec *v1.PodSpec, name string) *v1.Container {
	if c := containerOf(spec, name); c != nil {
		return c
	}
	for i := range spec.EphemeralContainers {
		if spec.EphemeralContainers[i].Name == name {
			return (*v1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon)
		}
	}
	return nil
}

func containerOf(spec *v1.PodSpec, name string) *v1.Container {
	for c := range Containers(spec) {
		if c.Name == name {
			return c
		}
	}
	return nil
}
