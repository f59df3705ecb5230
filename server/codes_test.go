package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
)

// Each kind of error has its code, however it is wrapped. The context's errors take precedence: a
// cancelled step has failed for that reason.
func TestCodes(t *testing.T) {
	for want, err := range map[string]error{
		"InvalidArgument":    fault.Invalid.Errorf("x"),
		"NotFound":           fmt.Errorf("outer: %w", fault.NotFound.Errorf("x")),
		"AlreadyExists":      fault.Exists.Errorf("x"),
		"FailedPrecondition": fault.WrongState.Errorf("x"),
		"Unavailable":        fault.Unavailable.Errorf("x"),
		"Unknown":            errors.New("x"),
		"DeadlineExceeded":   &overdueError{fault.Internal.Errorf("exec: %w", context.DeadlineExceeded)},
		"Canceled":           fmt.Errorf("x: %w", context.Canceled),
	} {
		if got := codeOf(t.Context(), err).String(); got != want {
			t.Errorf("%v: code %s, want %s", err, got, want)
		}
	}
	// A limit of our own that has passed says nothing about a probe, nor that crispd is away.
	late := fmt.Errorf("start: %w", context.DeadlineExceeded)
	if got := codeOf(t.Context(), late).String(); got != "Aborted" {
		t.Errorf("%v: code %s, want Aborted", late, got)
	}
	// A full disk can be fixed, after which the call is repeated.
	full := fmt.Errorf("x: %w", &os.PathError{Op: "write", Path: "/x", Err: unix.ENOSPC})
	if got := codeOf(t.Context(), full).String(); got != "Unavailable" {
		t.Errorf("%v: code %s, want Unavailable", full, got)
	}
}

// A pull that its caller gave up is not the registry's fault; one in which the registry did not
// answer for too long is.
func TestCodeOfATimeoutInAPull(t *testing.T) {
	err := &registry.PullError{Reason: registry.RegistryUnavailable, Err: context.DeadlineExceeded}
	if got := codeOf(t.Context(), err).String(); got != "Unknown" {
		t.Errorf("the store's own limit: code %s, want Unknown", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if got := codeOf(ctx, err).String(); got != "DeadlineExceeded" {
		t.Errorf("the caller's limit: code %s, want DeadlineExceeded", got)
	}
}

// CRI: stopping and removing a missing object succeeds.
func TestRemovingTheUnknownSucceeds(t *testing.T) {
	n := newNode(t)
	for what, err := range map[string]error{
		"StopPodSandbox":   second(n.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: "feed"})),
		"RemovePodSandbox": second(n.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: "feed"})),
		"StopContainer":    second(n.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: "feed"})),
		"RemoveContainer":  second(n.RemoveContainer(t.Context(), &cri.RemoveContainerRequest{ContainerId: "feed"})),
		"RemoveImage":      second(n.images.RemoveImage(t.Context(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: "nowhere:1"}})),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// A status request for a missing object gets the one code that the kubelet understands.
func TestAskingAboutTheUnknown(t *testing.T) {
	n := newNode(t)
	for what, err := range map[string]error{
		"PodSandboxStatus":          second(n.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: "feed"})),
		"ContainerStatus":           second(n.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: "feed"})),
		"PodSandboxStats":           second(n.PodSandboxStats(t.Context(), &cri.PodSandboxStatsRequest{PodSandboxId: "feed"})),
		"ContainerStats":            second(n.ContainerStats(t.Context(), &cri.ContainerStatsRequest{ContainerId: "feed"})),
		"StartContainer":            second(n.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: "feed"})),
		"CreateContainer":           second(n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: "feed", Config: forever("a")})),
		"ExecSync":                  second(n.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: "feed", Cmd: []string{"ls"}})),
		"Exec":                      second(n.Exec(t.Context(), &cri.ExecRequest{ContainerId: "feed", Cmd: []string{"ls"}, Stdout: true})),
		"Attach":                    second(n.Attach(t.Context(), &cri.AttachRequest{ContainerId: "feed", Stdout: true})),
		"PortForward":               second(n.PortForward(t.Context(), &cri.PortForwardRequest{PodSandboxId: "feed"})),
		"ReopenContainerLog":        second(n.ReopenContainerLog(t.Context(), &cri.ReopenContainerLogRequest{ContainerId: "feed"})),
		"UpdateContainerResources":  second(n.UpdateContainerResources(t.Context(), &cri.UpdateContainerResourcesRequest{ContainerId: "feed"})),
		"UpdatePodSandboxResources": second(n.UpdatePodSandboxResources(t.Context(), &cri.UpdatePodSandboxResourcesRequest{PodSandboxId: "feed"})),
	} {
		wantCode(t, what, err, "NotFound")
	}
	resp, err := n.images.ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: "nowhere:1"}})
	if err != nil || resp.Image != nil {
		t.Errorf("ImageStatus: %v, %v; want no image and no error", resp, err)
	}
}

// Requests with which no sandbox can be made.
func TestRunSandboxRefuses(t *testing.T) {
	n := newNode(t)
	for name, change := range map[string]func(*cri.RunPodSandboxRequest){
		"no config":       func(r *cri.RunPodSandboxRequest) { r.Config = nil },
		"no uid":          func(r *cri.RunPodSandboxRequest) { r.Config.Metadata.Uid = "" },
		"unknown handler": func(r *cri.RunPodSandboxRequest) { r.RuntimeHandler = "kata" },
		"group without user": func(r *cri.RunPodSandboxRequest) {
			r.Config.Linux.SecurityContext.RunAsGroup = &cri.Int64Value{Value: 1}
		},
		"user namespace": func(r *cri.RunPodSandboxRequest) {
			r.Config.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &cri.UserNamespace{Gids: []*cri.IDMapping{{Length: 1}}}
		},
		"user namespace of a container": func(r *cri.RunPodSandboxRequest) {
			r.Config.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &cri.UserNamespace{Mode: cri.NamespaceMode_CONTAINER}
		},
		"network of a container": func(r *cri.RunPodSandboxRequest) {
			r.Config.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_CONTAINER
		},
		"target": func(r *cri.RunPodSandboxRequest) {
			r.Config.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_TARGET
		},
		"slice without systemd": func(r *cri.RunPodSandboxRequest) { r.Config.Linux.CgroupParent = "/kubepods.slice" },
		"sysctl of the host":    func(r *cri.RunPodSandboxRequest) { r.Config.Linux.Sysctls = map[string]string{"vm.swappiness": "1"} },
	} {
		req := &cri.RunPodSandboxRequest{Config: pod("web")}
		change(req)
		_, err := n.RunPodSandbox(t.Context(), req)
		wantCode(t, name, err, "InvalidArgument")
	}
	n.wantNothingLeft(t)
	for _, handler := range []string{"", "crisp"} {
		if _, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("ok" + handler), RuntimeHandler: handler}); err != nil {
			t.Errorf("handler %q: %v", handler, err)
		}
	}
}

// The kubelet distinguishes two failures of a pull by the first word of the text of
// an error with code Unknown.
func TestPullErrors(t *testing.T) {
	n := newNode(t)
	pull := func() error {
		return second(n.images.PullImage(t.Context(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: testImage}}))
	}
	for _, reason := range []string{registry.RegistryUnavailable, registry.SignatureValidationFailed} {
		n.store.failing("Pull", &registry.PullError{Reason: reason, Err: fault.Unavailable.Errorf("details")})
		if err := pull(); err == nil || !strings.Contains(err.Error(), "code = Unknown desc = "+reason+": details") {
			t.Errorf("%s: %v", reason, err)
		}
	}
	n.store.failing("Pull", context.DeadlineExceeded)
	wantCode(t, "timeout", pull(), "Aborted")
	n.store.failing("Pull", fault.NotFound.Errorf("no such tag"))
	wantCode(t, "unknown tag", pull(), "NotFound")
	n.store.failing("Pull", nil)
	_, err := n.images.PullImage(t.Context(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: testImage, RuntimeHandler: "kata"}})
	wantCode(t, "unknown handler", err, "InvalidArgument")
}

// The kubelet recognizes an image volume that cannot be mounted by the first word.
func TestImageVolumeError(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	c := forever("a")
	c.Mounts = []*cri.Mount{{ContainerPath: "/a", Image: &cri.ImageSpec{Image: "nowhere:1"}, Readonly: true}}
	_, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: c})
	if err == nil || !strings.Contains(err.Error(), "desc = ImageVolumeMountFailed: ") {
		t.Errorf("got %v", err)
	}
}

// A bug in one handler fails one request, and does not crash the daemon that manages all
// containers.
func TestPanicIsAnError(t *testing.T) {
	n := newNode(t)
	_, err := n.server.unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/x/Y"}, func(context.Context, any) (any, error) { panic("bug") })
	wantCode(t, "unary", err, "Unknown")
	stream := testStream{ctx: t.Context()}
	err = n.server.stream(nil, stream, &grpc.StreamServerInfo{FullMethod: "/x/Y"}, func(any, grpc.ServerStream) error { panic("bug") })
	wantCode(t, "stream", err, "Unknown")
}

type testStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s testStream) Context() context.Context { return s.ctx }
