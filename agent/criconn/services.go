package criconn

import (
	"context"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtime counts the calls of a RuntimeService, but not Close and GetContainerEvents, whose
// stream never ends.
type runtime struct{ *Connection }

func (s *runtime) to() internalapi.RuntimeService {
	<-s.made
	return s.runtime
}

// images counts the calls of an ImageManagerService.
type images struct{ *Connection }

func (s *images) to() internalapi.ImageManagerService {
	<-s.made
	return s.images
}

func (s *runtime) Close(ctx context.Context) error { return s.to().Close(ctx) }

func (s *images) Close(ctx context.Context) error { return s.to().Close(ctx) }

func (s *runtime) GetContainerEvents(ctx context.Context, events chan *cri.ContainerEventResponse, connected func(cri.RuntimeService_GetContainerEventsClient)) error {
	return s.to().GetContainerEvents(ctx, events, connected)
}

func (s *runtime) Version(ctx context.Context, apiVersion string) (r *cri.VersionResponse, err error) {
	defer s.begin(ctx, "version", &err)()
	return s.to().Version(ctx, apiVersion)
}

func (s *runtime) CreateContainer(ctx context.Context, podSandboxID string, config *cri.ContainerConfig, sandboxConfig *cri.PodSandboxConfig) (r string, err error) {
	defer s.begin(ctx, "create_container", &err)()
	return s.to().CreateContainer(ctx, podSandboxID, config, sandboxConfig)
}

func (s *runtime) StartContainer(ctx context.Context, containerID string) (err error) {
	defer s.begin(ctx, "start_container", &err)()
	return s.to().StartContainer(ctx, containerID)
}

func (s *runtime) StopContainer(ctx context.Context, containerID string, timeout int64) (err error) {
	defer s.begin(ctx, "stop_container", &err)()
	return s.to().StopContainer(ctx, containerID, timeout)
}

func (s *runtime) RemoveContainer(ctx context.Context, containerID string) (err error) {
	defer s.begin(ctx, "remove_container", &err)()
	return s.to().RemoveContainer(ctx, containerID)
}

func (s *runtime) ListContainers(ctx context.Context, filter *cri.ContainerFilter) (r []*cri.Container, err error) {
	defer s.begin(ctx, "list_containers", &err)()
	return s.to().ListContainers(ctx, filter)
}

func (s *runtime) ContainerStatus(ctx context.Context, containerID string, verbose bool) (r *cri.ContainerStatusResponse, err error) {
	defer s.begin(ctx, "container_status", &err)()
	return s.to().ContainerStatus(ctx, containerID, verbose)
}

func (s *runtime) UpdateContainerResources(ctx context.Context, containerID string, resources *cri.ContainerResources) (err error) {
	defer s.begin(ctx, "update_container_resources", &err)()
	return s.to().UpdateContainerResources(ctx, containerID, resources)
}

func (s *runtime) ExecSync(ctx context.Context, containerID string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	defer s.begin(ctx, "exec_sync", &err)()
	return s.to().ExecSync(ctx, containerID, cmd, timeout)
}

func (s *runtime) Exec(ctx context.Context, request *cri.ExecRequest) (r *cri.ExecResponse, err error) {
	defer s.begin(ctx, "exec", &err)()
	return s.to().Exec(ctx, request)
}

func (s *runtime) Attach(ctx context.Context, req *cri.AttachRequest) (r *cri.AttachResponse, err error) {
	defer s.begin(ctx, "attach", &err)()
	return s.to().Attach(ctx, req)
}

func (s *runtime) ReopenContainerLog(ctx context.Context, ContainerID string) (err error) {
	defer s.begin(ctx, "reopen_container_log", &err)()
	return s.to().ReopenContainerLog(ctx, ContainerID)
}

func (s *runtime) CheckpointContainer(ctx context.Context, options *cri.CheckpointContainerRequest) (err error) {
	defer s.begin(ctx, "checkpoint_container", &err)()
	return s.to().CheckpointContainer(ctx, options)
}

func (s *runtime) RunPodSandbox(ctx context.Context, config *cri.PodSandboxConfig, runtimeHandler string) (r string, err error) {
	defer s.begin(ctx, "run_podsandbox", &err)()
	return s.to().RunPodSandbox(ctx, config, runtimeHandler)
}

func (s *runtime) StopPodSandbox(ctx context.Context, podSandboxID string) (err error) {
	defer s.begin(ctx, "stop_podsandbox", &err)()
	return s.to().StopPodSandbox(ctx, podSandboxID)
}

func (s *runtime) RemovePodSandbox(ctx context.Context, podSandboxID string) (err error) {
	defer s.begin(ctx, "remove_podsandbox", &err)()
	return s.to().RemovePodSandbox(ctx, podSandboxID)
}

func (s *runtime) PodSandboxStatus(ctx context.Context, podSandboxID string, verbose bool) (r *cri.PodSandboxStatusResponse, err error) {
	defer s.begin(ctx, "podsandbox_status", &err)()
	return s.to().PodSandboxStatus(ctx, podSandboxID, verbose)
}

func (s *runtime) ListPodSandbox(ctx context.Context, filter *cri.PodSandboxFilter) (r []*cri.PodSandbox, err error) {
	defer s.begin(ctx, "list_podsandbox", &err)()
	return s.to().ListPodSandbox(ctx, filter)
}

func (s *runtime) PortForward(ctx context.Context, request *cri.PortForwardRequest) (r *cri.PortForwardResponse, err error) {
	defer s.begin(ctx, "port_forward", &err)()
	return s.to().PortForward(ctx, request)
}

func (s *runtime) UpdatePodSandboxResources(ctx context.Context, request *cri.UpdatePodSandboxResourcesRequest) (r *cri.UpdatePodSandboxResourcesResponse, err error) {
	defer s.begin(ctx, "update_podsandbox_resources", &err)()
	return s.to().UpdatePodSandboxResources(ctx, request)
}

func (s *runtime) CheckpointPod(ctx context.Context, options *cri.CheckpointPodRequest) (err error) {
	defer s.begin(ctx, "checkpoint_pod", &err)()
	return s.to().CheckpointPod(ctx, options)
}

func (s *runtime) RestorePod(ctx context.Context, options *cri.RestorePodRequest) (r *cri.RestorePodResponse, err error) {
	defer s.begin(ctx, "restore_pod", &err)()
	return s.to().RestorePod(ctx, options)
}

func (s *runtime) ContainerStats(ctx context.Context, containerID string) (r *cri.ContainerStats, err error) {
	defer s.begin(ctx, "container_stats", &err)()
	return s.to().ContainerStats(ctx, containerID)
}

func (s *runtime) ListContainerStats(ctx context.Context, filter *cri.ContainerStatsFilter) (r []*cri.ContainerStats, err error) {
	defer s.begin(ctx, "list_container_stats", &err)()
	return s.to().ListContainerStats(ctx, filter)
}

func (s *runtime) PodSandboxStats(ctx context.Context, podSandboxID string) (r *cri.PodSandboxStats, err error) {
	defer s.begin(ctx, "podsandbox_stats", &err)()
	return s.to().PodSandboxStats(ctx, podSandboxID)
}

func (s *runtime) ListPodSandboxStats(ctx context.Context, filter *cri.PodSandboxStatsFilter) (r []*cri.PodSandboxStats, err error) {
	defer s.begin(ctx, "list_podsandbox_stats", &err)()
	return s.to().ListPodSandboxStats(ctx, filter)
}

func (s *runtime) ListMetricDescriptors(ctx context.Context) (r []*cri.MetricDescriptor, err error) {
	defer s.begin(ctx, "list_metric_descriptors", &err)()
	return s.to().ListMetricDescriptors(ctx)
}

func (s *runtime) ListPodSandboxMetrics(ctx context.Context) (r []*cri.PodSandboxMetrics, err error) {
	defer s.begin(ctx, "list_podsandbox_metrics", &err)()
	return s.to().ListPodSandboxMetrics(ctx)
}

func (s *runtime) UpdateRuntimeConfig(ctx context.Context, runtimeConfig *cri.RuntimeConfig) (err error) {
	defer s.begin(ctx, "update_runtime_config", &err)()
	return s.to().UpdateRuntimeConfig(ctx, runtimeConfig)
}

func (s *runtime) Status(ctx context.Context, verbose bool) (r *cri.StatusResponse, err error) {
	defer s.begin(ctx, "status", &err)()
	return s.to().Status(ctx, verbose)
}

func (s *runtime) RuntimeConfig(ctx context.Context) (r *cri.RuntimeConfigResponse, err error) {
	defer s.begin(ctx, "runtime_config", &err)()
	return s.to().RuntimeConfig(ctx)
}

func (s *images) ListImages(ctx context.Context, filter *cri.ImageFilter) (r []*cri.Image, err error) {
	defer s.begin(ctx, "list_images", &err)()
	return s.to().ListImages(ctx, filter)
}

func (s *images) ImageStatus(ctx context.Context, image *cri.ImageSpec, verbose bool) (r *cri.ImageStatusResponse, err error) {
	defer s.begin(ctx, "image_status", &err)()
	return s.to().ImageStatus(ctx, image, verbose)
}

func (s *images) PullImage(ctx context.Context, image *cri.ImageSpec, auth *cri.AuthConfig, podSandboxConfig *cri.PodSandboxConfig) (r string, err error) {
	defer s.begin(ctx, "pull_image", &err)()
	return s.to().PullImage(ctx, image, auth, podSandboxConfig)
}

func (s *images) RemoveImage(ctx context.Context, image *cri.ImageSpec) (err error) {
	defer s.begin(ctx, "remove_image", &err)()
	return s.to().RemoveImage(ctx, image)
}

func (s *images) ImageFsInfo(ctx context.Context) (r *cri.ImageFsInfoResponse, err error) {
	defer s.begin(ctx, "image_fs_info", &err)()
	return s.to().ImageFsInfo(ctx)
}
