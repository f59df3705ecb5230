package criconn

import (
	"context"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtime counts the calls of a RuntimeService, but not Close and GetContainerEvents, whose
// stream never ends.
type runtime struct{ *Connection }

// images counts the calls of an ImageManagerService.
type images struct{ *Connection }

func (s *runtime) Close(ctx context.Context) error {
	if err := s.wait(ctx); err != nil {
		return err
	}
	return s.runtime.Close(ctx)
}

func (s *images) Close(ctx context.Context) error {
	if err := s.wait(ctx); err != nil {
		return err
	}
	return s.images.Close(ctx)
}

func (s *runtime) GetContainerEvents(ctx context.Context, events chan *cri.ContainerEventResponse, connected func(cri.RuntimeService_GetContainerEventsClient)) error {
	if err := s.wait(ctx); err != nil {
		return err
	}
	return s.runtime.GetContainerEvents(ctx, events, connected)
}

func (s *runtime) Version(ctx context.Context, apiVersion string) (*cri.VersionResponse, error) {
	return call(ctx, s.Connection, "version", func() (*cri.VersionResponse, error) { return s.runtime.Version(ctx, apiVersion) })
}

func (s *runtime) CreateContainer(ctx context.Context, podSandboxID string, config *cri.ContainerConfig, sandboxConfig *cri.PodSandboxConfig) (string, error) {
	return call(ctx, s.Connection, "create_container", func() (string, error) { return s.runtime.CreateContainer(ctx, podSandboxID, config, sandboxConfig) })
}

func (s *runtime) StartContainer(ctx context.Context, containerID string) error {
	return s.do(ctx, "start_container", func() error { return s.runtime.StartContainer(ctx, containerID) })
}

func (s *runtime) StopContainer(ctx context.Context, containerID string, timeout int64) error {
	return s.do(ctx, "stop_container", func() error { return s.runtime.StopContainer(ctx, containerID, timeout) })
}

func (s *runtime) RemoveContainer(ctx context.Context, containerID string) error {
	return s.do(ctx, "remove_container", func() error { return s.runtime.RemoveContainer(ctx, containerID) })
}

func (s *runtime) ListContainers(ctx context.Context, filter *cri.ContainerFilter) ([]*cri.Container, error) {
	return call(ctx, s.Connection, "list_containers", func() ([]*cri.Container, error) { return s.runtime.ListContainers(ctx, filter) })
}

func (s *runtime) ContainerStatus(ctx context.Context, containerID string, verbose bool) (*cri.ContainerStatusResponse, error) {
	return call(ctx, s.Connection, "container_status", func() (*cri.ContainerStatusResponse, error) {
		return s.runtime.ContainerStatus(ctx, containerID, verbose)
	})
}

func (s *runtime) UpdateContainerResources(ctx context.Context, containerID string, resources *cri.ContainerResources) error {
	return s.do(ctx, "update_container_resources", func() error { return s.runtime.UpdateContainerResources(ctx, containerID, resources) })
}

func (s *runtime) ExecSync(ctx context.Context, containerID string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	err = s.do(ctx, "exec_sync", func() (err error) {
		stdout, stderr, err = s.runtime.ExecSync(ctx, containerID, cmd, timeout)
		return err
	})
	return stdout, stderr, err
}

func (s *runtime) Exec(ctx context.Context, request *cri.ExecRequest) (*cri.ExecResponse, error) {
	return call(ctx, s.Connection, "exec", func() (*cri.ExecResponse, error) { return s.runtime.Exec(ctx, request) })
}

func (s *runtime) Attach(ctx context.Context, req *cri.AttachRequest) (*cri.AttachResponse, error) {
	return call(ctx, s.Connection, "attach", func() (*cri.AttachResponse, error) { return s.runtime.Attach(ctx, req) })
}

func (s *runtime) ReopenContainerLog(ctx context.Context, ContainerID string) error {
	return s.do(ctx, "reopen_container_log", func() error { return s.runtime.ReopenContainerLog(ctx, ContainerID) })
}

func (s *runtime) CheckpointContainer(ctx context.Context, options *cri.CheckpointContainerRequest) error {
	return s.do(ctx, "checkpoint_container", func() error { return s.runtime.CheckpointContainer(ctx, options) })
}

func (s *runtime) RunPodSandbox(ctx context.Context, config *cri.PodSandboxConfig, runtimeHandler string) (string, error) {
	return call(ctx, s.Connection, "run_podsandbox", func() (string, error) { return s.runtime.RunPodSandbox(ctx, config, runtimeHandler) })
}

func (s *runtime) StopPodSandbox(ctx context.Context, podSandboxID string) error {
	return s.do(ctx, "stop_podsandbox", func() error { return s.runtime.StopPodSandbox(ctx, podSandboxID) })
}

func (s *runtime) RemovePodSandbox(ctx context.Context, podSandboxID string) error {
	return s.do(ctx, "remove_podsandbox", func() error { return s.runtime.RemovePodSandbox(ctx, podSandboxID) })
}

func (s *runtime) PodSandboxStatus(ctx context.Context, podSandboxID string, verbose bool) (*cri.PodSandboxStatusResponse, error) {
	return call(ctx, s.Connection, "podsandbox_status", func() (*cri.PodSandboxStatusResponse, error) {
		return s.runtime.PodSandboxStatus(ctx, podSandboxID, verbose)
	})
}

func (s *runtime) ListPodSandbox(ctx context.Context, filter *cri.PodSandboxFilter) ([]*cri.PodSandbox, error) {
	return call(ctx, s.Connection, "list_podsandbox", func() ([]*cri.PodSandbox, error) { return s.runtime.ListPodSandbox(ctx, filter) })
}

func (s *runtime) PortForward(ctx context.Context, request *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	return call(ctx, s.Connection, "port_forward", func() (*cri.PortForwardResponse, error) { return s.runtime.PortForward(ctx, request) })
}

func (s *runtime) UpdatePodSandboxResources(ctx context.Context, request *cri.UpdatePodSandboxResourcesRequest) (*cri.UpdatePodSandboxResourcesResponse, error) {
	return call(ctx, s.Connection, "update_podsandbox_resources", func() (*cri.UpdatePodSandboxResourcesResponse, error) {
		return s.runtime.UpdatePodSandboxResources(ctx, request)
	})
}

func (s *runtime) CheckpointPod(ctx context.Context, options *cri.CheckpointPodRequest) error {
	return s.do(ctx, "checkpoint_pod", func() error { return s.runtime.CheckpointPod(ctx, options) })
}

func (s *runtime) RestorePod(ctx context.Context, options *cri.RestorePodRequest) (*cri.RestorePodResponse, error) {
	return call(ctx, s.Connection, "restore_pod", func() (*cri.RestorePodResponse, error) { return s.runtime.RestorePod(ctx, options) })
}

func (s *runtime) ContainerStats(ctx context.Context, containerID string) (*cri.ContainerStats, error) {
	return call(ctx, s.Connection, "container_stats", func() (*cri.ContainerStats, error) { return s.runtime.ContainerStats(ctx, containerID) })
}

func (s *runtime) ListContainerStats(ctx context.Context, filter *cri.ContainerStatsFilter) ([]*cri.ContainerStats, error) {
	return call(ctx, s.Connection, "list_container_stats", func() ([]*cri.ContainerStats, error) { return s.runtime.ListContainerStats(ctx, filter) })
}

func (s *runtime) PodSandboxStats(ctx context.Context, podSandboxID string) (*cri.PodSandboxStats, error) {
	return call(ctx, s.Connection, "podsandbox_stats", func() (*cri.PodSandboxStats, error) { return s.runtime.PodSandboxStats(ctx, podSandboxID) })
}

func (s *runtime) ListPodSandboxStats(ctx context.Context, filter *cri.PodSandboxStatsFilter) ([]*cri.PodSandboxStats, error) {
	return call(ctx, s.Connection, "list_podsandbox_stats", func() ([]*cri.PodSandboxStats, error) { return s.runtime.ListPodSandboxStats(ctx, filter) })
}

func (s *runtime) ListMetricDescriptors(ctx context.Context) ([]*cri.MetricDescriptor, error) {
	return call(ctx, s.Connection, "list_metric_descriptors", func() ([]*cri.MetricDescriptor, error) { return s.runtime.ListMetricDescriptors(ctx) })
}

func (s *runtime) ListPodSandboxMetrics(ctx context.Context) ([]*cri.PodSandboxMetrics, error) {
	return call(ctx, s.Connection, "list_podsandbox_metrics", func() ([]*cri.PodSandboxMetrics, error) { return s.runtime.ListPodSandboxMetrics(ctx) })
}

func (s *runtime) UpdateRuntimeConfig(ctx context.Context, runtimeConfig *cri.RuntimeConfig) error {
	return s.do(ctx, "update_runtime_config", func() error { return s.runtime.UpdateRuntimeConfig(ctx, runtimeConfig) })
}

func (s *runtime) Status(ctx context.Context, verbose bool) (*cri.StatusResponse, error) {
	return call(ctx, s.Connection, "status", func() (*cri.StatusResponse, error) { return s.runtime.Status(ctx, verbose) })
}

func (s *runtime) RuntimeConfig(ctx context.Context) (*cri.RuntimeConfigResponse, error) {
	return call(ctx, s.Connection, "runtime_config", func() (*cri.RuntimeConfigResponse, error) { return s.runtime.RuntimeConfig(ctx) })
}

func (s *images) ListImages(ctx context.Context, filter *cri.ImageFilter) ([]*cri.Image, error) {
	return call(ctx, s.Connection, "list_images", func() ([]*cri.Image, error) { return s.images.ListImages(ctx, filter) })
}

func (s *images) ImageStatus(ctx context.Context, image *cri.ImageSpec, verbose bool) (*cri.ImageStatusResponse, error) {
	return call(ctx, s.Connection, "image_status", func() (*cri.ImageStatusResponse, error) { return s.images.ImageStatus(ctx, image, verbose) })
}

func (s *images) PullImage(ctx context.Context, image *cri.ImageSpec, auth *cri.AuthConfig, podSandboxConfig *cri.PodSandboxConfig) (string, error) {
	return call(ctx, s.Connection, "pull_image", func() (string, error) { return s.images.PullImage(ctx, image, auth, podSandboxConfig) })
}

func (s *images) RemoveImage(ctx context.Context, image *cri.ImageSpec) error {
	return s.do(ctx, "remove_image", func() error { return s.images.RemoveImage(ctx, image) })
}

func (s *images) ImageFsInfo(ctx context.Context) (*cri.ImageFsInfoResponse, error) {
	return call(ctx, s.Connection, "image_fs_info", func() (*cri.ImageFsInfoResponse, error) { return s.images.ImageFsInfo(ctx) })
}
