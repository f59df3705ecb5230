package play

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/model"
)

// namespace is the namespace of all pods of scripts.
const namespace = "model"

// ProgramLabel is the label of containers with the name of the model's program in it.
const ProgramLabel = "program"

// commands are testbin's arguments for the programs of the model.
var commands = map[string][]string{
	"stays":    {"catch", "sleep", "for-ever"},
	"stubborn": {"ignore-term", "sleep", "for-ever"},
	"quits":    {"catch", "sleep", "20ms", "exit", "7"},
}

// ask makes the call. id and sandbox are the IDs in its request.
func (p *player) ask(ctx context.Context, c model.Call, id, sandbox string) (a model.Answer, err error) {
	r := p.node.Runtime()
	switch c.Verb {
	case model.RunPod:
		var resp *cri.RunPodSandboxResponse
		resp, err = r.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: podConfig(c)})
		a.ID = resp.GetPodSandboxId()
	case model.StopPod:
		_, err = r.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
	case model.RemovePod:
		_, err = r.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
	case model.UpdatePod:
		_, err = r.UpdatePodSandboxResources(ctx, &cri.UpdatePodSandboxResourcesRequest{
			PodSandboxId: id, Resources: &cri.LinuxContainerResources{CpuShares: 2},
		})
	case model.PodStatus:
		var resp *cri.PodSandboxStatusResponse
		if resp, err = r.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id}); err == nil {
			a.State = podState(resp.Status.State)
		}
	case model.ListPods:
		var resp *cri.ListPodSandboxResponse
		resp, err = r.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: podFilter(c)})
		for _, sb := range resp.GetItems() {
			a.Items = append(a.Items, model.Item{Pod: sb.Metadata.GetName(), ID: sb.Id, State: podState(sb.State)})
		}
	case model.Create:
		var resp *cri.CreateContainerResponse
		resp, err = r.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: sandbox, Config: p.containerConfig(c), SandboxConfig: podConfig(c)})
		a.ID = resp.GetContainerId()
	case model.Start:
		_, err = r.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: id})
	case model.Stop:
		_, err = r.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id, Timeout: int64(c.Grace)})
	case model.Remove:
		_, err = r.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
	case model.Exec:
		var resp *cri.ExecSyncResponse
		resp, err = r.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"/testbin", "print", "here"}})
		a.Exit = int(resp.GetExitCode())
		if err == nil && a.Exit == 0 && string(resp.Stdout) != "here\n" {
			err = fmt.Errorf("the command printed %q, want %q", resp.Stdout, "here\n")
		}
	case model.Update:
		_, err = r.UpdateContainerResources(ctx, &cri.UpdateContainerResourcesRequest{
			ContainerId: id, Linux: &cri.LinuxContainerResources{CpuShares: int64(c.Value)},
		})
	case model.Checkpoint:
		err = p.checkpoint(ctx, id)
	case model.Reopen:
		_, err = r.ReopenContainerLog(ctx, &cri.ReopenContainerLogRequest{ContainerId: id})
	case model.Status:
		var resp *cri.ContainerStatusResponse
		if resp, err = r.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id}); err == nil {
			st := resp.Status
			a.State, a.Exit, a.Value = containerState(st.State), int(st.ExitCode), int(st.Resources.GetLinux().GetCpuShares())
		}
	case model.List:
		var resp *cri.ListContainersResponse
		resp, err = r.ListContainers(ctx, &cri.ListContainersRequest{Filter: containerFilter(c)})
		for _, ctr := range resp.GetContainers() {
			a.Items = append(a.Items, model.Item{
				Pod: ctr.Labels["pod"], Container: ctr.Metadata.GetName(), ID: ctr.Id, Sandbox: ctr.PodSandboxId, State: containerState(ctr.State),
			})
		}
	default:
		return p.askImages(ctx, c)
	}
	return a, err
}

// checkpoint makes a checkpoint, which nothing needs.
func (p *player) checkpoint(ctx context.Context, id string) error {
	dir, err := os.MkdirTemp("", "checkpoint-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	_, err = p.node.Runtime().CheckpointContainer(ctx, &cri.CheckpointContainerRequest{ContainerId: id, Location: filepath.Join(dir, "checkpoint.tar")})
	return err
}

func (p *player) askImages(ctx context.Context, c model.Call) (a model.Answer, err error) {
	i, spec := p.node.Images(), &cri.ImageSpec{Image: p.node.Ref(c.Image)}
	switch c.Verb {
	case model.Pull:
		var resp *cri.PullImageResponse
		resp, err = i.PullImage(ctx, &cri.PullImageRequest{Image: spec})
		a.ID = resp.GetImageRef()
	case model.RemoveImage:
		_, err = i.RemoveImage(ctx, &cri.RemoveImageRequest{Image: spec})
	case model.ImageStatus:
		var resp *cri.ImageStatusResponse
		resp, err = i.ImageStatus(ctx, &cri.ImageStatusRequest{Image: spec})
		a.ID = resp.GetImage().GetId()
	case model.ListImages:
		var filter *cri.ImageFilter
		if c.Image != "" {
			filter = &cri.ImageFilter{Image: spec}
		}
		var resp *cri.ListImagesResponse
		resp, err = i.ListImages(ctx, &cri.ListImagesRequest{Filter: filter})
		for _, img := range resp.GetImages() {
			for _, tag := range img.RepoTags {
				if name := p.names[tag]; name != "" {
					a.Items = append(a.Items, model.Item{Image: name, ID: img.Id})
				}
			}
		}
	default:
		err = fmt.Errorf("no call is called %q", c.Verb)
	}
	return a, err
}

func podConfig(c model.Call) *cri.PodSandboxConfig {
	config := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: c.Pod, Namespace: namespace, Uid: "uid-" + c.Pod},
		Hostname: c.Pod,
		Labels:   map[string]string{"pod": c.Pod},
		Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
		}},
	}
	if c.Verb == model.RunPod && c.Variant != 0 {
		config.Labels["variant"] = fmt.Sprint(c.Variant)
	}
	return config
}

func (p *player) containerConfig(c model.Call) *cri.ContainerConfig {
	return &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: c.Container},
		Image:    &cri.ImageSpec{Image: p.node.Ref(c.Image), UserSpecifiedImage: p.node.Ref(c.Image)}, // as the kubelet sets it
		Command:  []string{"/testbin"},
		Args:     commands[model.Programs[c.Variant].Name],
		Labels:   map[string]string{"pod": c.Pod, ProgramLabel: model.Programs[c.Variant].Name},
		Linux: &cri.LinuxContainerConfig{
			Resources: &cri.LinuxContainerResources{CpuShares: int64(model.Values[0])},
			SecurityContext: &cri.LinuxContainerSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
			},
		},
	}
}

// ofScripts returns the labels of the objects that the call lists.
func ofScripts(c model.Call) map[string]string {
	if c.Pod == "" {
		return nil
	}
	return map[string]string{"pod": c.Pod}
}

func podFilter(c model.Call) *cri.PodSandboxFilter {
	f := &cri.PodSandboxFilter{LabelSelector: ofScripts(c)}
	switch c.State {
	case model.Ready:
		f.State = &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY}
	case model.NotReady:
		f.State = &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_NOTREADY}
	}
	return f
}

func containerFilter(c model.Call) *cri.ContainerFilter {
	f := &cri.ContainerFilter{LabelSelector: ofScripts(c)}
	for state, of := range map[model.State]cri.ContainerState{
		model.Created: cri.ContainerState_CONTAINER_CREATED, model.Running: cri.ContainerState_CONTAINER_RUNNING, model.Exited: cri.ContainerState_CONTAINER_EXITED,
	} {
		if c.State == state {
			f.State = &cri.ContainerStateValue{State: of}
		}
	}
	return f
}

func podState(st cri.PodSandboxState) model.State {
	if st == cri.PodSandboxState_SANDBOX_READY {
		return model.Ready
	}
	return model.NotReady
}

func containerState(st cri.ContainerState) model.State {
	switch st {
	case cri.ContainerState_CONTAINER_CREATED:
		return model.Created
	case cri.ContainerState_CONTAINER_RUNNING:
		return model.Running
	case cri.ContainerState_CONTAINER_EXITED:
		return model.Exited
	}
	return model.Unknown
}
