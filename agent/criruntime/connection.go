package criruntime

import (
	"context"
	"log/slog"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Connection is the connection to a runtime. It counts and times the calls, in metrics with the
// kubelet's names (kubelet_runtime_operations_total and the like), and logs each at level debug.
// It may be used before the runtime has answered: until then a call blocks, and is
// fault.Unavailable when its context ends.
type Connection struct {
	Counts *prometheus.Registry // of the calls

	log *slog.Logger

	made    chan struct{} // closed by Connect
	runtime internalapi.RuntimeService
	images  internalapi.ImageManagerService
	name    string // CRI's runtime name

	total, failed, took *prometheus.CounterVec
}

// NewConnection returns a Connection that is not connected yet. The line in log for each call has the
// attributes of the call's context, such as the pod.
func NewConnection(log *slog.Logger) *Connection {
	counts, of := prometheus.NewRegistry(), []string{"operation_type"}
	return &Connection{
		Counts: counts, log: log, made: make(chan struct{}),
		total:  promauto.With(counts).NewCounterVec(prometheus.CounterOpts{Name: "kubelet_runtime_operations_total", Help: "Operations of the runtime."}, of),
		failed: promauto.With(counts).NewCounterVec(prometheus.CounterOpts{Name: "kubelet_runtime_operations_errors_total", Help: "Operations of the runtime that failed."}, of),
		took:   promauto.With(counts).NewCounterVec(prometheus.CounterOpts{Name: "kubelet_runtime_operations_seconds_total", Help: "Time that operations of the runtime took."}, of),
	}
}

// Connect asks a runtime for its version, and returns that. If the runtime answers, the
// Connection uses it from then on. Connect must not be called again after that.
func (c *Connection) Connect(ctx context.Context, r internalapi.RuntimeService, i internalapi.ImageManagerService) (version *cri.VersionResponse, err error) {
	defer c.begin(ctx, "version", &err)()
	if version, err = r.Version(ctx, ""); err != nil {
		return nil, err
	}
	c.runtime, c.images, c.name = r, i, version.RuntimeName
	close(c.made)
	return version, nil
}

// Runtime returns the runtime's RuntimeService, with calls counted.
func (c *Connection) Runtime() internalapi.RuntimeService { return &countedRuntime{c} }

// Images returns the runtime's ImageManagerService, with calls counted.
func (c *Connection) Images() internalapi.ImageManagerService { return &countedImages{c} }

// Connected reports whether the runtime has answered.
func (c *Connection) Connected() bool {
	select {
	case <-c.made:
		return true
	default:
		return false
	}
}

// RuntimeName returns the runtime's name in CRI's Version, "" before it has answered.
func (c *Connection) RuntimeName() string {
	if !c.Connected() {
		return ""
	}
	return c.name
}

// wait returns when the runtime has answered.
func (c *Connection) wait(ctx context.Context) error {
	if c.Connected() {
		return nil // whatever the context: the call ends with it
	}
	select {
	case <-c.made:
		return nil
	case <-ctx.Done():
		return fault.Unavailable.Errorf("the runtime has not answered yet: %w", ctx.Err())
	}
}

// call does a call, once the runtime has answered, and counts it.
func call[R any](ctx context.Context, c *Connection, name string, ask func() (R, error)) (r R, err error) {
	if err := c.wait(ctx); err != nil {
		return r, err
	}
	defer c.begin(ctx, name, &err)()
	return ask()
}

// do is call for a call without a result.
func (c *Connection) do(ctx context.Context, name string, ask func() error) error {
	_, err := call(ctx, c, name, func() (struct{}, error) { return struct{}{}, ask() })
	return err
}

// begin starts an operation. The function that it returns ends the operation, with the error
// that err then points at.
func (c *Connection) begin(ctx context.Context, name string, err *error) func() {
	start := time.Now()
	return func() {
		took := time.Since(start)
		c.log.DebugContext(ctx, "runtime asked", "operation", name, "took", took, "err", *err)
		c.total.WithLabelValues(name).Inc()
		c.took.WithLabelValues(name).Add(took.Seconds())
		if failed := c.failed.WithLabelValues(name); *err != nil {
			failed.Inc()
		}
	}
}

// cri-client takes no interceptor, so each method is wrapped by hand. With
// docs/upstream/cri-client-dial-options.patch one interceptor would do.

// countedRuntime counts the calls of a RuntimeService, but not Close and GetContainerEvents, whose
// stream never ends.
type countedRuntime struct{ *Connection }

// countedImages counts the calls of an ImageManagerService.
type countedImages struct{ *Connection }

func (s *countedRuntime) Close(ctx context.Context) error {
	if err := s.wait(ctx); err != nil {
		return err
	}
	return s.runtime.Close(ctx)
}

func (s *countedImages) Close(ctx context.Context) error {
	if err := s.wait(ctx); err != nil {
		return err
	}
	return s.images.Close(ctx)
}

func (s *countedRuntime) GetContainerEvents(ctx context.Context, events chan *cri.ContainerEventResponse, connected func(cri.RuntimeService_GetContainerEventsClient)) error {
	if err := s.wait(ctx); err != nil {
		return err
	}
	return s.runtime.GetContainerEvents(ctx, events, connected)
}

func (s *countedRuntime) Version(ctx context.Context, apiVersion string) (*cri.VersionResponse, error) {
	return call(ctx, s.Connection, "version", func() (*cri.VersionResponse, error) { return s.runtime.Version(ctx, apiVersion) })
}

func (s *countedRuntime) CreateContainer(ctx context.Context, podSandboxID string, config *cri.ContainerConfig, sandboxConfig *cri.PodSandboxConfig) (string, error) {
	return call(ctx, s.Connection, "create_container", func() (string, error) { return s.runtime.CreateContainer(ctx, podSandboxID, config, sandboxConfig) })
}

func (s *countedRuntime) StartContainer(ctx context.Context, containerID string) error {
	return s.do(ctx, "start_container", func() error { return s.runtime.StartContainer(ctx, containerID) })
}

func (s *countedRuntime) StopContainer(ctx context.Context, containerID string, timeout int64) error {
	return s.do(ctx, "stop_container", func() error { return s.runtime.StopContainer(ctx, containerID, timeout) })
}

func (s *countedRuntime) RemoveContainer(ctx context.Context, containerID string) error {
	return s.do(ctx, "remove_container", func() error { return s.runtime.RemoveContainer(ctx, containerID) })
}

func (s *countedRuntime) ListContainers(ctx context.Context, filter *cri.ContainerFilter) ([]*cri.Container, error) {
	return call(ctx, s.Connection, "list_containers", func() ([]*cri.Container, error) { return s.runtime.ListContainers(ctx, filter) })
}

func (s *countedRuntime) ContainerStatus(ctx context.Context, containerID string, verbose bool) (*cri.ContainerStatusResponse, error) {
	return call(ctx, s.Connection, "container_status", func() (*cri.ContainerStatusResponse, error) {
		return s.runtime.ContainerStatus(ctx, containerID, verbose)
	})
}

func (s *countedRuntime) UpdateContainerResources(ctx context.Context, containerID string, resources *cri.ContainerResources) error {
	return s.do(ctx, "update_container_resources", func() error { return s.runtime.UpdateContainerResources(ctx, containerID, resources) })
}

func (s *countedRuntime) ExecSync(ctx context.Context, containerID string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	err = s.do(ctx, "exec_sync", func() (err error) {
		stdout, stderr, err = s.runtime.ExecSync(ctx, containerID, cmd, timeout)
		return err
	})
	return stdout, stderr, err
}

func (s *countedRuntime) Exec(ctx context.Context, request *cri.ExecRequest) (*cri.ExecResponse, error) {
	return call(ctx, s.Connection, "exec", func() (*cri.ExecResponse, error) { return s.runtime.Exec(ctx, request) })
}

func (s *countedRuntime) Attach(ctx context.Context, req *cri.AttachRequest) (*cri.AttachResponse, error) {
	return call(ctx, s.Connection, "attach", func() (*cri.AttachResponse, error) { return s.runtime.Attach(ctx, req) })
}

func (s *countedRuntime) ReopenContainerLog(ctx context.Context, ContainerID string) error {
	return s.do(ctx, "reopen_container_log", func() error { return s.runtime.ReopenContainerLog(ctx, ContainerID) })
}

func (s *countedRuntime) CheckpointContainer(ctx context.Context, options *cri.CheckpointContainerRequest) error {
	return s.do(ctx, "checkpoint_container", func() error { return s.runtime.CheckpointContainer(ctx, options) })
}

func (s *countedRuntime) RunPodSandbox(ctx context.Context, config *cri.PodSandboxConfig, runtimeHandler string) (string, error) {
	return call(ctx, s.Connection, "run_podsandbox", func() (string, error) { return s.runtime.RunPodSandbox(ctx, config, runtimeHandler) })
}

func (s *countedRuntime) StopPodSandbox(ctx context.Context, podSandboxID string) error {
	return s.do(ctx, "stop_podsandbox", func() error { return s.runtime.StopPodSandbox(ctx, podSandboxID) })
}

func (s *countedRuntime) RemovePodSandbox(ctx context.Context, podSandboxID string) error {
	return s.do(ctx, "remove_podsandbox", func() error { return s.runtime.RemovePodSandbox(ctx, podSandboxID) })
}

func (s *countedRuntime) PodSandboxStatus(ctx context.Context, podSandboxID string, verbose bool) (*cri.PodSandboxStatusResponse, error) {
	return call(ctx, s.Connection, "podsandbox_status", func() (*cri.PodSandboxStatusResponse, error) {
		return s.runtime.PodSandboxStatus(ctx, podSandboxID, verbose)
	})
}

func (s *countedRuntime) ListPodSandbox(ctx context.Context, filter *cri.PodSandboxFilter) ([]*cri.PodSandbox, error) {
	return call(ctx, s.Connection, "list_podsandbox", func() ([]*cri.PodSandbox, error) { return s.runtime.ListPodSandbox(ctx, filter) })
}

func (s *countedRuntime) PortForward(ctx context.Context, request *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	return call(ctx, s.Connection, "port_forward", func() (*cri.PortForwardResponse, error) { return s.runtime.PortForward(ctx, request) })
}

func (s *countedRuntime) UpdatePodSandboxResources(ctx context.Context, request *cri.UpdatePodSandboxResourcesRequest) (*cri.UpdatePodSandboxResourcesResponse, error) {
	return call(ctx, s.Connection, "update_podsandbox_resources", func() (*cri.UpdatePodSandboxResourcesResponse, error) {
		return s.runtime.UpdatePodSandboxResources(ctx, request)
	})
}

func (s *countedRuntime) CheckpointPod(ctx context.Context, options *cri.CheckpointPodRequest) error {
	return s.do(ctx, "checkpoint_pod", func() error { return s.runtime.CheckpointPod(ctx, options) })
}

func (s *countedRuntime) RestorePod(ctx context.Context, options *cri.RestorePodRequest) (*cri.RestorePodResponse, error) {
	return call(ctx, s.Connection, "restore_pod", func() (*cri.RestorePodResponse, error) { return s.runtime.RestorePod(ctx, options) })
}

func (s *countedRuntime) ContainerStats(ctx context.Context, containerID string) (*cri.ContainerStats, error) {
	return call(ctx, s.Connection, "container_stats", func() (*cri.ContainerStats, error) { return s.runtime.ContainerStats(ctx, containerID) })
}

func (s *countedRuntime) ListContainerStats(ctx context.Context, filter *cri.ContainerStatsFilter) ([]*cri.ContainerStats, error) {
	return call(ctx, s.Connection, "list_container_stats", func() ([]*cri.ContainerStats, error) { return s.runtime.ListContainerStats(ctx, filter) })
}

func (s *countedRuntime) PodSandboxStats(ctx context.Context, podSandboxID string) (*cri.PodSandboxStats, error) {
	return call(ctx, s.Connection, "podsandbox_stats", func() (*cri.PodSandboxStats, error) { return s.runtime.PodSandboxStats(ctx, podSandboxID) })
}

func (s *countedRuntime) ListPodSandboxStats(ctx context.Context, filter *cri.PodSandboxStatsFilter) ([]*cri.PodSandboxStats, error) {
	return call(ctx, s.Connection, "list_podsandbox_stats", func() ([]*cri.PodSandboxStats, error) { return s.runtime.ListPodSandboxStats(ctx, filter) })
}

func (s *countedRuntime) ListMetricDescriptors(ctx context.Context) ([]*cri.MetricDescriptor, error) {
	return call(ctx, s.Connection, "list_metric_descriptors", func() ([]*cri.MetricDescriptor, error) { return s.runtime.ListMetricDescriptors(ctx) })
}

func (s *countedRuntime) ListPodSandboxMetrics(ctx context.Context) ([]*cri.PodSandboxMetrics, error) {
	return call(ctx, s.Connection, "list_podsandbox_metrics", func() ([]*cri.PodSandboxMetrics, error) { return s.runtime.ListPodSandboxMetrics(ctx) })
}

func (s *countedRuntime) UpdateRuntimeConfig(ctx context.Context, runtimeConfig *cri.RuntimeConfig) error {
	return s.do(ctx, "update_runtime_config", func() error { return s.runtime.UpdateRuntimeConfig(ctx, runtimeConfig) })
}

func (s *countedRuntime) Status(ctx context.Context, verbose bool) (*cri.StatusResponse, error) {
	return call(ctx, s.Connection, "status", func() (*cri.StatusResponse, error) { return s.runtime.Status(ctx, verbose) })
}

func (s *countedRuntime) RuntimeConfig(ctx context.Context) (*cri.RuntimeConfigResponse, error) {
	return call(ctx, s.Connection, "runtime_config", func() (*cri.RuntimeConfigResponse, error) { return s.runtime.RuntimeConfig(ctx) })
}

func (s *countedImages) ListImages(ctx context.Context, filter *cri.ImageFilter) ([]*cri.Image, error) {
	return call(ctx, s.Connection, "list_images", func() ([]*cri.Image, error) { return s.images.ListImages(ctx, filter) })
}

func (s *countedImages) ImageStatus(ctx context.Context, image *cri.ImageSpec, verbose bool) (*cri.ImageStatusResponse, error) {
	return call(ctx, s.Connection, "image_status", func() (*cri.ImageStatusResponse, error) { return s.images.ImageStatus(ctx, image, verbose) })
}

func (s *countedImages) PullImage(ctx context.Context, image *cri.ImageSpec, auth *cri.AuthConfig, podSandboxConfig *cri.PodSandboxConfig) (string, error) {
	return call(ctx, s.Connection, "pull_image", func() (string, error) { return s.images.PullImage(ctx, image, auth, podSandboxConfig) })
}

func (s *countedImages) RemoveImage(ctx context.Context, image *cri.ImageSpec) error {
	return s.do(ctx, "remove_image", func() error { return s.images.RemoveImage(ctx, image) })
}

func (s *countedImages) ImageFsInfo(ctx context.Context) (*cri.ImageFsInfoResponse, error) {
	return call(ctx, s.Connection, "image_fs_info", func() (*cri.ImageFsInfoResponse, error) { return s.images.ImageFsInfo(ctx) })
}
