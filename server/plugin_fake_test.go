package server

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/crisp-cri/crisp/server/nri"
)

// A plugin is a real NRI plugin: it uses NRI over the socket. It records notifications and does
// what a test requests.
type plugin struct {
	stub  stub.Stub
	ready chan struct{} // closed by the first Synchronize

	mu     sync.Mutex
	heard  []string // "CreateContainer name"
	synced []string
	pods   map[string]*api.PodSandbox
	seen   map[string]*api.Container // by the call
	calls  map[string]func() error   // functions that run during calls
	adjust *api.ContainerAdjustment
	update []*api.ContainerUpdate // returned by CreateContainer, UpdateContainer and StopContainer
}

// pluginNode is a node where plugins can connect.
func pluginNode(t *testing.T) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "nri") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return newNodeWith(t, &nri.Options{Socket: filepath.Join(dir, "s")})
}

// join connects a plugin. With a call for Synchronize, it does not wait for that.
func (n *node) join(t *testing.T, index string, calls map[string]func() error) *plugin {
	t.Helper()
	p := &plugin{ready: make(chan struct{}), calls: calls, pods: map[string]*api.PodSandbox{}, seen: map[string]*api.Container{}}
	var err error
	p.stub, err = stub.New(p, stub.WithPluginName("test"), stub.WithPluginIdx(index), stub.WithSocketPath(n.plugins.Socket), stub.WithOnClose(func() {}))
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan error, 1)
	go func() { started <- p.stub.Start(t.Context()) }()
	t.Cleanup(p.stub.Stop)
	if calls["Synchronize"] != nil {
		return p
	}
	select {
	case <-p.ready:
	case err := <-started:
		if err != nil {
			t.Fatal(err)
		}
		<-p.ready
	}
	return p
}

// note records a call and runs the test's function for it.
func (p *plugin) note(call, name string) error {
	p.mu.Lock()
	p.heard = append(p.heard, call+" "+name)
	do := p.calls[call]
	p.mu.Unlock()
	if do != nil {
		return do()
	}
	return nil
}

func (p *plugin) pod(call string, pod *api.PodSandbox) error {
	p.mu.Lock()
	p.pods[call] = pod
	p.mu.Unlock()
	return p.note(call, pod.Name)
}

func (p *plugin) container(call string, c *api.Container) error {
	p.mu.Lock()
	p.seen[call] = c
	p.mu.Unlock()
	return p.note(call, c.Name)
}

// notifications returns the notifications so far.
func (p *plugin) notifications() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.heard)
}

// on sets the function for a call.
func (p *plugin) on(call string, do func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls == nil {
		p.calls = map[string]func() error{}
	}
	p.calls[call] = do
}

// wants sets the plugin's answers.
func (p *plugin) wants(adjust *api.ContainerAdjustment, update ...*api.ContainerUpdate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.adjust, p.update = adjust, update
}

func (p *plugin) answer() (*api.ContainerAdjustment, []*api.ContainerUpdate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.adjust, p.update
}

func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	p.mu.Lock()
	for _, pod := range pods {
		p.synced = append(p.synced, pod.Name)
		p.pods["Synchronize"] = pod
	}
	for _, c := range containers {
		p.synced = append(p.synced, c.Name)
	}
	do := p.calls["Synchronize"]
	p.mu.Unlock()
	defer close(p.ready)
	if do != nil {
		return nil, do()
	}
	return nil, nil
}

func (p *plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.pod("RunPodSandbox", pod)
}

func (p *plugin) UpdatePodSandbox(_ context.Context, pod *api.PodSandbox, _, _ *api.LinuxResources) error {
	return p.pod("UpdatePodSandbox", pod)
}

func (p *plugin) PostUpdatePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.pod("PostUpdatePodSandbox", pod)
}

func (p *plugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.pod("StopPodSandbox", pod)
}

func (p *plugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.pod("RemovePodSandbox", pod)
}

func (p *plugin) CreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	err := p.container("CreateContainer", c)
	adjust, update := p.answer()
	return adjust, update, err
}

func (p *plugin) PostCreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.container("PostCreateContainer", c)
}

func (p *plugin) StartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.container("StartContainer", c)
}

func (p *plugin) PostStartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.container("PostStartContainer", c)
}

func (p *plugin) UpdateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container, _ *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	err := p.container("UpdateContainer", c)
	_, update := p.answer()
	return update, err
}

func (p *plugin) PostUpdateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.container("PostUpdateContainer", c)
}

func (p *plugin) StopContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	err := p.container("StopContainer", c)
	_, update := p.answer()
	return update, err
}

func (p *plugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.container("RemoveContainer", c)
}

// gate returns a call that blocks until open is called.
func gate() (call func() error, reached <-chan struct{}, open func()) {
	in, out := make(chan struct{}), make(chan struct{})
	enter := sync.OnceFunc(func() { close(in) })
	return func() error { enter(); <-out; return nil }, in, sync.OnceFunc(func() { close(out) })
}
