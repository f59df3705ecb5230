package criruntime

import (
	"context"
	"slices"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// resize updates the runtime's resources: decreases first, so that there is room for the
// increases, memory before CPU, and the sandbox before its containers when the pod as a
// whole gets more. Until all of that has succeeded the pod is recorded as resizing, so that the rest
// is done later even if no container differs any more.
func (d *Driver) resize(ctx context.Context, pod *v1.Pod, a podsync.Action) error {
	uid := string(pod.UID)
	actual := d.files.Actual(uid)
	left := d.files.Resizing(uid)
	if err := d.files.SetResizing(uid, true); err != nil {
		return err
	}
	for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceCPU} {
		var list []*v1.Container
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if was, ok := actual[c.Name]; ok && !podsync.SameResource(name, c.Resources, was) {
				list = append(list, &c)
			}
		}
		if len(list) == 0 {
			continue
		}
		delta := func(c *v1.Container) int {
			now, was := c.Resources.Limits[name], actual[c.Name].Limits[name]
			if now.Cmp(was) == 0 {
				now, was = c.Resources.Requests[name], actual[c.Name].Requests[name]
			}
			return now.Cmp(was)
		}
		slices.SortStableFunc(list, func(a, b *v1.Container) int { return delta(a) - delta(b) })
		sized := pod
		if name == v1.ResourceMemory {
			sized = withCPU(pod, actual)
		}
		grows := delta(list[len(list)-1]) > 0
		if grows {
			if err := d.resizeSandbox(ctx, sized, a.SandboxID); err != nil {
				return err
			}
		}
		for _, c := range list {
			if err := d.resizeContainer(ctx, pod, c, name); err != nil {
				return err
			}
		}
		if !grows {
			if err := d.resizeSandbox(ctx, sized, a.SandboxID); err != nil {
				return err
			}
		}
	}
	d.forget(podsync.KeyOf(pod)) // the statuses include the resources
	if left {
		if err := d.resizeSandbox(ctx, pod, a.SandboxID); err != nil {
			return err
		}
	}
	return d.files.SetResizing(uid, false)
}

// resizeForStart resizes the sandbox of a container that is about to start with other resources
// than it had.
func (d *Driver) resizeForStart(ctx context.Context, pod *v1.Pod, c *v1.Container, sandbox string) error {
	uid := string(pod.UID)
	was, known := d.files.Actual(uid)[c.Name]
	if !known || podsync.SameResources(c.Resources, was) {
		return nil
	}
	left := d.files.Resizing(uid)
	if err := d.files.SetResizing(uid, true); err != nil {
		return err
	}
	if err := d.resizeSandbox(ctx, pod, sandbox); err != nil || left {
		return err // what was left before may concern other containers
	}
	return d.files.SetResizing(uid, false)
}

// withCPU returns the pod with the CPU that its containers have. While only memory is resized, the
// pod keeps its CPU: on cgroup v1 it cannot have less than a container.
func withCPU(pod *v1.Pod, actual map[string]v1.ResourceRequirements) *v1.Pod {
	pod = pod.DeepCopy()
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if was, ok := actual[list[i].Name]; ok {
				set(&list[i].Resources.Limits, was.Limits, v1.ResourceCPU)
				set(&list[i].Resources.Requests, was.Requests, v1.ResourceCPU)
			}
		}
	}
	return pod
}

func (d *Driver) resizeSandbox(ctx context.Context, pod *v1.Pod, id string) error {
	req := &cri.UpdatePodSandboxResourcesRequest{PodSandboxId: id}
	req.Resources, req.Overhead = d.sized(pod).PodResources()
	if _, err := d.runtime.UpdatePodSandboxResources(ctx, req); err != nil && !unimplemented(err) {
		return Fault(err)
	}
	return d.o.ContainerManager.Resize(pod)
}

// resizeContainer changes one resource of a running container and leaves the other as it was.
func (d *Driver) resizeContainer(ctx context.Context, pod *v1.Pod, c *v1.Container, name v1.ResourceName) error {
	found, err := d.running(ctx, pod, c.Name)
	if err != nil || found == "" {
		return err
	}
	part := *c
	was := d.files.Actual(string(pod.UID))[c.Name]
	part.Resources = *was.DeepCopy()
	set(&part.Resources.Limits, c.Resources.Limits, name)
	set(&part.Resources.Requests, c.Resources.Requests, name)
	err = Fault(d.runtime.UpdateContainerResources(ctx, found, &cri.ContainerResources{Linux: d.sized(pod).Resources(&part)}))
	if err != nil {
		return Reasoned("ResizeError", err)
	}
	return d.files.SetActual(string(pod.UID), c.Name, part.Resources)
}

func set(into *v1.ResourceList, from v1.ResourceList, name v1.ResourceName) {
	q, ok := from[name]
	if !ok {
		delete(*into, name)
		return
	}
	if *into == nil {
		*into = v1.ResourceList{}
	}
	(*into)[name] = q.DeepCopy()
}

// running returns the ID of the pod's running container of this name, or "".
func (d *Driver) running(ctx context.Context, pod *v1.Pod, name string) (string, error) {
	selector := d.of(podsync.KeyOf(pod))
	selector[podspec.LabelPodUID], selector[podspec.LabelContainerName] = string(pod.UID), name
	list, err := d.runtime.ListContainers(ctx, &cri.ContainerFilter{
		LabelSelector: selector,
		State:         &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
	})
	if err != nil || len(list) == 0 {
		return "", Fault(err)
	}
	return list[0].Id, nil
}
