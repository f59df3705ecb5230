package server

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/network"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/oci/ocitest"
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
}

// newNode starts a server on a machine of its own.
func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{machine: ocitest.NewMachine(t), store: newFakeImages(t), net: &fakeNetwork{}}
	n.start(t)
	t.Cleanup(func() {
		// What runs would write its exit into a directory that is being removed.
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
func (n *node) start(t *testing.T) {
	t.Helper()
	events := NewEvents()
	o := n.machine.Options(t)
	o.OnEvent, o.Rebooted = events.Publish, n.rebooted
	var err error
	if n.runtime, err = oci.Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	n.server, err = New(Options{
		Runtime: n.runtime, Images: n.store, Network: n.net, Events: events, Log: o.Log, Version: "1.2.3",
		RejectMountSources: []string{"/must/be/there"}, Root: n.machine.Root, State: n.machine.State,
	})
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(n.server.Interceptors()...)
	n.server.Register(g)
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

// restart ends crispd and starts it again on the same machine.
func (n *node) restart(t *testing.T) {
	t.Helper()
	n.stop()
	n.start(t)
}

// run runs a sandbox that must come up.
func (n *node) run(t *testing.T, config *cri.PodSandboxConfig) string {
	t.Helper()
	resp, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatalf("run sandbox: %v", err)
	}
	return resp.PodSandboxId
}

// create creates a container that must come into being.
func (n *node) create(t *testing.T, sandbox string, config *cri.ContainerConfig) string {
	t.Helper()
	resp, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sandbox, Config: config})
	if err != nil {
		t.Fatalf("create container: %v", err)
	}
	return resp.ContainerId
}

// begin creates and starts a container.
func (n *node) begin(t *testing.T, sandbox string, config *cri.ContainerConfig) string {
	t.Helper()
	id := n.create(t, sandbox, config)
	if _, err := n.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatalf("start container: %v", err)
	}
	return id
}

// status is a container's.
func (n *node) status(t *testing.T, id string) *cri.ContainerStatus {
	t.Helper()
	resp, err := n.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		t.Fatalf("status of container: %v", err)
	}
	return resp.Status
}

// listed are the IDs that the two lists show.
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

// left lists all that is not cleaned up on the machine.
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

// pod is the config of a sandbox as the kubelet makes them.
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

// container is the config of a container that runs a script of testbin.
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

// forever is a container that runs until it is stopped.
func forever(name string) *cri.ContainerConfig { return container(name, "sleep", "for-ever") }

const (
	testImage  = "registry.test/test:latest"
	testDigest = "registry.test/test@sha256:4444444444444444444444444444444444444444444444444444444444444444"
	testID     = "sha256:5555555555555555555555555555555555555555555555555555555555555555"
)

// fakeImages is a store with one image, whose file systems are directories.
type fakeImages struct {
	dir string

	mu     sync.Mutex
	list   []image.Image
	mounts map[string]bool
	fail   map[string]error // by method
	pulled []*image.Auth
}

func newFakeImages(t *testing.T) *fakeImages {
	return &fakeImages{
		dir: t.TempDir(), mounts: map[string]bool{}, fail: map[string]error{},
		list: []image.Image{{
			ID: testID, Tags: []string{testImage}, Digests: []string{testDigest}, Size: 1 << 20,
			Config: v1.Image{Config: v1.ImageConfig{
				Entrypoint: []string{"/testbin"}, User: "web:staff", StopSignal: "SIGQUIT",
				Env: []string{"FROM=image"},
			}},
		}},
	}
}

// failing sets what a method returns; nil mends it.
func (f *fakeImages) failing(method string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail[method] = err
}

func (f *fakeImages) failure(method string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fail[method]
}

func (f *fakeImages) Pull(ctx context.Context, ref string, auth *image.Auth) (image.Image, error) {
	if err := f.failure("Pull"); err != nil {
		return image.Image{}, err
	}
	f.mu.Lock()
	f.pulled = append(f.pulled, auth)
	f.mu.Unlock()
	return f.Get(ref)
}

func (f *fakeImages) Load(_ context.Context, r io.Reader) ([]image.Image, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if string(b) == "" {
		return nil, nil
	}
	img := image.Image{ID: fmt.Sprintf("sha256:%064d", len(b)), Tags: []string{"loaded:latest"}, Size: uint64(len(b))}
	f.list = append(f.list, img)
	return []image.Image{img}, nil
}

func (f *fakeImages) Get(ref string) (image.Image, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, img := range f.list {
		if img.ID == ref || slices.Contains(img.Tags, ref) || slices.Contains(img.Digests, ref) {
			return img, nil
		}
	}
	return image.Image{}, fault.NotFound.Errorf("no image %q", ref)
}

func (f *fakeImages) List() []image.Image {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.list)
}

func (f *fakeImages) Remove(_ context.Context, ref string) error {
	img, err := f.Get(ref)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = slices.DeleteFunc(f.list, func(i image.Image) bool { return i.ID == img.ID })
	return nil
}

func (f *fakeImages) Mount(_ context.Context, key, _ string) (string, error) {
	return f.mount("Mount", key)
}

func (f *fakeImages) MountReadOnly(_ context.Context, key, _ string) (string, error) {
	return f.mount("MountReadOnly", key)
}

func (f *fakeImages) mount(method, key string) (string, error) {
	if err := f.failure(method); err != nil {
		return "", err
	}
	root := filepath.Join(f.dir, key)
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		return "", err
	}
	files := map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\nweb:x:1000:1000::/home/web:/bin/sh\n",
		"etc/group":  "root:x:0:\nstaff:x:50:\nlog:x:60:web\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mounts[key] = true
	return root, nil
}

func (f *fakeImages) Unmount(_ context.Context, key string, remove bool) error {
	if err := f.failure("Unmount"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if remove {
		delete(f.mounts, key)
		return os.RemoveAll(filepath.Join(f.dir, key))
	}
	return nil
}

func (f *fakeImages) Mounts() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.mounts))
}

func (f *fakeImages) Usage(string) (uint64, uint64, error) { return 4096, 3, nil }

func (f *fakeImages) FsInfo() image.FsInfo {
	return image.FsInfo{Mountpoint: f.dir, UsedBytes: 1 << 20, Inodes: 12}
}

// fakeNetwork gives every pod two addresses.
type fakeNetwork struct {
	mu      sync.Mutex
	pods    map[string]network.Pod
	adds    int
	fail    map[string]error
	gate    chan struct{} // if not nil, Attach waits for it
	waiting chan struct{} // told when Attach waits
	kept    []string
}

// hold makes Attach wait until release is called; waiting gets a value when one
// does.
func (f *fakeNetwork) hold() (waiting <-chan struct{}, release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gate, w := make(chan struct{}), make(chan struct{}, 16)
	f.gate, f.waiting = gate, w
	return w, sync.OnceFunc(func() {
		f.mu.Lock()
		f.gate = nil
		f.mu.Unlock()
		close(gate)
	})
}

func (f *fakeNetwork) failing(method string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail == nil {
		f.fail = map[string]error{}
	}
	f.fail[method] = err
}

func (f *fakeNetwork) attached() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.pods))
}

func (f *fakeNetwork) pod(id string) network.Pod {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pods[id]
}

func (f *fakeNetwork) Attach(ctx context.Context, p network.Pod) (network.Result, error) {
	f.mu.Lock()
	gate := f.gate
	f.mu.Unlock()
	if gate != nil {
		f.waiting <- struct{}{}
		select {
		case <-gate:
		case <-ctx.Done():
			return network.Result{}, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.adds++
	if err := f.fail["Attach"]; err != nil {
		return network.Result{}, err
	}
	if f.pods == nil {
		f.pods = map[string]network.Pod{}
	}
	f.pods[p.ID] = p
	return network.Result{IPs: []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::3")}, Interface: "eth0"}, nil
}

func (f *fakeNetwork) Detach(_ context.Context, p network.Pod) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail["Detach"]; err != nil {
		return err
	}
	delete(f.pods, p.ID)
	return nil
}

func (f *fakeNetwork) Status() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fail["Status"]
}

func (f *fakeNetwork) GC(_ context.Context, keep []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept = keep
	for id := range f.pods {
		if !slices.Contains(keep, id) {
			delete(f.pods, id)
		}
	}
	return nil
}

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
