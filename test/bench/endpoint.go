package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	label      = "crisp.dev/bench"
	rpcTimeout = 2 * time.Minute
	maxMessage = 16 << 20
)

// payload is what the containers run, and how memory.go knows them.
var payload = []string{"sleep", "3600"}

// endpoint is one runtime under measurement.
type endpoint struct {
	name string
	addr string
	pids []int    // processes of the runtime, each with all that is below it
	exes []string // the same, by executable name

	conn    *grpc.ClientConn
	runtime cri.RuntimeServiceClient
	images  cri.ImageServiceClient

	imageRef string // what its PullImage called the image of the pods
}

func endpointNames(es []endpoint) []string {
	var names []string
	for _, e := range es {
		names = append(names, e.name)
	}
	return names
}

// parseEndpoint reads name=address[,pid=N…][,exe=NAME…].
func parseEndpoint(s string) (endpoint, error) {
	fields := strings.Split(s, ",")
	var e endpoint
	e.name, e.addr, _ = strings.Cut(fields[0], "=")
	if e.name == "" || e.addr == "" {
		return e, fmt.Errorf("endpoint %q: want name=address", s)
	}
	for _, f := range fields[1:] {
		key, value, _ := strings.Cut(f, "=")
		switch key {
		case "pid":
			pid, err := strconv.Atoi(value)
			if err != nil || pid < 1 {
				return e, fmt.Errorf("endpoint %s: pid %q is no process id", e.name, value)
			}
			e.pids = append(e.pids, pid)
		case "exe":
			if value == "" {
				return e, fmt.Errorf("endpoint %s: exe without a name", e.name)
			}
			e.exes = append(e.exes, value)
		default:
			return e, fmt.Errorf("endpoint %s: want pid= or exe=, have %q", e.name, f)
		}
	}
	return e, nil
}

func (e *endpoint) dial() (err error) {
	e.conn, err = grpc.NewClient(e.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return err
	}
	e.runtime, e.images = cri.NewRuntimeServiceClient(e.conn), cri.NewImageServiceClient(e.conn)
	return nil
}

// pod is one sandbox with one container.
type pod struct {
	config    *cri.PodSandboxConfig
	container *cri.ContainerConfig
	sandboxID string
	id        string
}

func (b *bench) newPod(e *endpoint, net string) *pod {
	uid := rand.Text()
	ns, hostname := &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}, "bench"
	if net == "host" {
		ns.Network, hostname = cri.NamespaceMode_NODE, "" // the node's UTS namespace comes with its network
	}
	seccomp := &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	ofContainer := &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
	if b.seccomp {
		ofContainer = seccomp
	}
	return &pod{
		config: &cri.PodSandboxConfig{
			Metadata:     &cri.PodSandboxMetadata{Name: "bench-" + strings.ToLower(uid), Namespace: "bench", Uid: uid},
			Hostname:     hostname,
			LogDirectory: filepath.Join(b.logs, uid),
			DnsConfig:    &cri.DNSConfig{},
			Labels:       map[string]string{label: "true"},
			Linux: &cri.LinuxPodSandboxConfig{
				CgroupParent:    b.cgroupParent,
				SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: ns, Seccomp: seccomp},
			},
		},
		container: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "sleep"},
			Image:    &cri.ImageSpec{Image: e.imageRef, UserSpecifiedImage: b.image},
			Command:  payload,
			Labels:   map[string]string{label: "true"},
			LogPath:  "sleep.log",
			Linux: &cri.LinuxContainerConfig{
				Resources:       &cri.LinuxContainerResources{CpuShares: 100, OomScoreAdj: 1000},
				SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: ns, Seccomp: ofContainer},
			},
		},
	}
}

// timing is told how long each call took; it may be nil.
type timing func(call string, took time.Duration)

func (t timing) call(ctx context.Context, name string, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, rpcTimeout)
	defer cancel()
	start := time.Now()
	if err := f(ctx); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if t != nil {
		t(name, time.Since(start))
	}
	return nil
}

// up runs the pod and its container.
func (e *endpoint) up(ctx context.Context, p *pod, t timing) error {
	if err := os.MkdirAll(p.config.LogDirectory, 0o755); err != nil {
		return err
	}
	if err := t.call(ctx, "RunPodSandbox", func(ctx context.Context) error {
		res, err := e.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config})
		p.sandboxID = res.GetPodSandboxId()
		return err
	}); err != nil {
		return err
	}
	if err := t.call(ctx, "CreateContainer", func(ctx context.Context) error {
		res, err := e.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
			PodSandboxId: p.sandboxID, Config: p.container, SandboxConfig: p.config})
		p.id = res.GetContainerId()
		return err
	}); err != nil {
		return err
	}
	return t.call(ctx, "StartContainer", func(ctx context.Context) error {
		_, err := e.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: p.id})
		return err
	})
}

// down takes away what up made.
func (e *endpoint) down(ctx context.Context, p *pod, t timing) error {
	if err := t.call(ctx, "StopContainer", func(ctx context.Context) error {
		_, err := e.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: p.id})
		return err
	}); err != nil {
		return err
	}
	if err := t.call(ctx, "RemoveContainer", func(ctx context.Context) error {
		_, err := e.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: p.id})
		return err
	}); err != nil {
		return err
	}
	if err := e.removeSandbox(ctx, p.sandboxID, t); err != nil {
		return err
	}
	return os.RemoveAll(p.config.LogDirectory)
}

func (e *endpoint) removeSandbox(ctx context.Context, id string, t timing) error {
	if err := t.call(ctx, "StopPodSandbox", func(ctx context.Context) error {
		_, err := e.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
		return err
	}); err != nil {
		return err
	}
	return t.call(ctx, "RemovePodSandbox", func(ctx context.Context) error {
		_, err := e.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
}

// clean removes every pod that a bench made, of this run or of one that was killed. The containers come first: StopPodSandbox has no
// timeout to give, and some runtimes grant two minutes.
func (e *endpoint) clean(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rpcTimeout)
	defer cancel()
	ours := map[string]string{label: "true"}
	containers, err := e.runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: ours}})
	if err != nil {
		return fmt.Errorf("ListContainers: %w", err)
	}
	var errs []error
	for _, c := range containers.Containers {
		if _, err := e.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.Id}); err != nil {
			errs = append(errs, fmt.Errorf("StopContainer: %w", err))
		}
	}
	sandboxes, err := e.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: ours}})
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("ListPodSandbox: %w", err))...)
	}
	for _, sb := range sandboxes.Items {
		errs = append(errs, e.removeSandbox(ctx, sb.Id, nil))
	}
	return errors.Join(errs...)
}
