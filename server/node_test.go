package server

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/nri"
	"github.com/crisp-cri/crisp/server/selinux"
	"github.com/crisp-cri/crisp/test/ocitest"
)

// A node is a fake machine with a server on it and a client of that server.
type node struct {
	cri.RuntimeServiceClient
	images cri.ImageServiceClient
	conn   *grpc.ClientConn

	machine *ocitest.Machine
	store   *fakeImages
	net     *fakeNetwork
	runtime *oci.Runtime
	server  *Server
	stop    func()

	rebooted bool // before the next start
	plugins  *nri.Options
	handlers map[string]Handler // from the next start on
	apparmor Confiner
	selinux  *selinux.Policy
	systemd  bool         // the cgroup driver
	log      *slog.Logger // nil = the test's
}

// newNode starts a server on a new machine.
func newNode(t testing.TB) *node {
	t.Helper()
	return newNodeWith(t, nil)
}

// newNodeWith is newNode with NRI, unless plugins is nil.
func newNodeWith(t testing.TB, plugins *nri.Options) *node {
	t.Helper()
	n := &node{machine: ocitest.NewMachine(t), store: newFakeImages(t), net: &fakeNetwork{}, plugins: plugins}
	n.start(t)
	t.Cleanup(func() {
		// Running containers would write their exits into a directory that is being removed.
		for _, c := range n.runtime.Containers() {
			if err := c.Stop(context.Background(), unix.SIGKILL, 0); err != nil {
				t.Errorf("stop container: %v", err)
			}
		}
		n.stop()
	})
	return n
}

// start starts crispd on the machine.
func (n *node) start(t testing.TB) {
	t.Helper()
	events := NewEvents()
	o := n.machine.Options(t)
	o.OnEvent, o.Rebooted, o.SystemdCgroup = events.Publish, n.rebooted, n.systemd
	if n.log != nil {
		o.Log = n.log
	}
	var err error
	if n.runtime, err = oci.Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	n.server, err = New(Options{
		Runtime: n.runtime, Images: n.store, RootFS: n.store, Network: n.net, Events: events, Log: o.Log, Version: "1.2.3",
		CDISpecDirs: []string{n.cdiDir()}, HooksDirs: []string{n.hooksDir()}, NRI: n.plugins, Handlers: n.handlers, AppArmor: n.apparmor, SELinux: n.selinux,
		RejectMountSources: []string{"/must/be/there"}, Root: n.machine.Root, State: n.machine.State, SystemdCgroup: n.systemd,
	})
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(Interceptors(n.server)...)
	Register(g, n.server)
	if err := n.server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := bufconn.Listen(1 << 20)
	go g.Serve(l)
	n.conn, err = grpc.NewClient("passthrough:crisp", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	n.RuntimeServiceClient, n.images = cri.NewRuntimeServiceClient(n.conn), cri.NewImageServiceClient(n.conn)
	n.stop = sync.OnceFunc(func() {
		n.conn.Close()
		if err := n.server.Close(); err != nil {
			t.Errorf("close server: %v", err)
		}
		g.Stop()
		if err := n.runtime.Close(); err != nil {
			t.Errorf("close runtime: %v", err)
		}
	})
}

// cdiDir and hooksDir are below the machine's state. These functions make them.
func (n *node) cdiDir() string   { return mkdir(filepath.Join(n.machine.State, "cdi")) }
func (n *node) hooksDir() string { return mkdir(filepath.Join(n.machine.State, "hooks.d")) }

func mkdir(dir string) string {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		panic(err)
	}
	return dir
}

// restart ends crispd and starts it again on the same machine.
func (n *node) restart(t *testing.T) {
	t.Helper()
	n.stop()
	n.start(t)
}

// run runs a sandbox, which must succeed.
func (n *node) run(t testing.TB, config *cri.PodSandboxConfig) string {
	t.Helper()
	resp, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatalf("run sandbox: %v", err)
	}
	return resp.PodSandboxId
}

// create creates a container, which must succeed.
func (n *node) create(t testing.TB, sandbox string, config *cri.ContainerConfig) string {
	t.Helper()
	resp, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sandbox, Config: config})
	if err != nil {
		t.Fatalf("create container: %v", err)
	}
	return resp.ContainerId
}

// begin creates and starts a container.
func (n *node) begin(t testing.TB, sandbox string, config *cri.ContainerConfig) string {
	t.Helper()
	id := n.create(t, sandbox, config)
	if _, err := n.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatalf("start container: %v", err)
	}
	return id
}

// status returns a container's status.
func (n *node) status(t *testing.T, id string) *cri.ContainerStatus {
	t.Helper()
	resp, err := n.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		t.Fatalf("status of container: %v", err)
	}
	return resp.Status
}

// listed returns the IDs in the two lists.
func (n *node) listed(t *testing.T) []string {
	t.Helper()
	var ids []string
	sandboxes, err := n.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range sandboxes.Items {
		ids = append(ids, sb.Id)
	}
	containers, err := n.ListContainers(t.Context(), &cri.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range containers.Containers {
		ids = append(ids, c.Id)
	}
	return ids
}

// left lists the objects that are left on the machine.
func (n *node) left() []string {
	left := append(n.machine.Left(), n.machine.Known()...)
	for _, id := range n.net.attached() {
		left = append(left, "network "+id)
	}
	for _, key := range n.store.Mounts() {
		left = append(left, "mount "+key)
	}
	for _, kind := range []string{"sandboxes", "containers"} {
		for _, dir := range []string{n.machine.Root, n.machine.State} {
			found, _ := filepath.Glob(filepath.Join(dir, kind, "*"))
			left = append(left, found...)
		}
	}
	return left
}

// wantNothingLeft fails if anything is.
func (n *node) wantNothingLeft(t *testing.T) {
	t.Helper()
	if left := n.left(); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
	if ids := n.listed(t); len(ids) > 0 {
		t.Errorf("still listed: %v", ids)
	}
}

// pod returns the config of a sandbox as the kubelet sends it.
func pod(name string) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata:    &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name, Attempt: 1},
		Hostname:    name,
		DnsConfig:   &cri.DNSConfig{Servers: []string{"10.0.0.10"}, Searches: []string{"svc", "local"}, Options: []string{"ndots:5"}},
		Labels:      map[string]string{"app": name, "tier": "test"},
		Annotations: map[string]string{"note": "kept as it is", "kubernetes.io/egress-bandwidth": "10M"},
		PortMappings: []*cri.PortMapping{
			{Protocol: cri.Protocol_UDP, ContainerPort: 53, HostPort: 5353, HostIp: "127.0.0.1"},
			{ContainerPort: 80}, // CRI: no host port is to be allocated
		},
		Linux: &cri.LinuxPodSandboxConfig{
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
			},
		},
	}
}

// container returns the config of a container that runs a script of testbin.
func container(name string, script ...string) *cri.ContainerConfig {
	return &cri.ContainerConfig{
		Metadata:    &cri.ContainerMetadata{Name: name},
		Image:       &cri.ImageSpec{Image: testImage, UserSpecifiedImage: "test"},
		Args:        script,
		Labels:      map[string]string{"name": name},
		Annotations: map[string]string{"hash": "1234"},
		Linux: &cri.LinuxContainerConfig{
			Resources: &cri.LinuxContainerResources{CpuShares: 512, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 500},
			SecurityContext: &cri.LinuxContainerSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
			},
		},
	}
}

// forever returns a container that runs until it is stopped.
func forever(name string) *cri.ContainerConfig { return container(name, "sleep", "for-ever") }

const (
	testImage  = "registry.test/test:latest"
	testDigest = "registry.test/test@sha256:4444444444444444444444444444444444444444444444444444444444444444"
	testID     = "sha256:5555555555555555555555555555555555555555555555555555555555555555"
)

// wantCode fails unless err has that status code. Codes are compared by name:
// the package that defines them belongs to the interceptor alone.
func wantCode(t *testing.T, what string, err error, code string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want %s", what, code)
		return
	}
	if !strings.Contains(err.Error(), "code = "+code+" ") {
		t.Errorf("%s: %v, want code %s", what, err, code)
	}
}
