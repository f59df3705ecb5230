package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// label is on every object of a soak.
const label = "crisp.dev/soak"

// A pod is a sandbox that exists, or existed until a moment ago.
type pod struct {
	config   *cri.PodSandboxConfig
	id       string
	hostPort int32 // 0: none

	stopped, removed atomic.Bool  // or about to be
	serves           atomic.Bool  // one of its containers has the port
	containers       []*container // guarded by mix.mu
	made             int          // number of containers ever made; guarded by mix.mu
}

// A container is a container that was started.
type container struct {
	pod     *pod
	config  *cri.ContainerConfig
	id      string
	program string
	born    time.Time
	cutOff  func(born time.Time) bool

	stopped, removed atomic.Bool // or about to be
}

func (p *pod) gone() bool       { return p.removed.Load() }
func (p *pod) halted() bool     { return p.stopped.Load() || p.removed.Load() }
func (c *container) gone() bool { return c.removed.Load() || c.pod.gone() }

// ended reports whether the container may have exited.
func (c *container) ended() bool {
	writes := c.program == "counts" || c.program == "echoes"
	return c.program == "quits" || writes && c.cutOff(c.born) || c.taken()
}

// taken reports whether a client has stopped or removed the container.
func (c *container) taken() bool { return c.stopped.Load() || c.gone() || c.pod.halted() }

func (c *container) log() string { return filepath.Join(c.pod.config.LogDirectory, c.config.LogPath) }

// programs are the commands of containers.
var programs = map[string][]string{
	"stays":    {"catch", "sleep", "for-ever"},
	"stubborn": {"ignore-term", "sleep", "for-ever"},
	"quits":    {"catch", "sleep", "300ms", "exit", "7"},
	"counts":   {"catch", "count", "-1", "20ms"},
	"echoes":   {"echo-stdin", "sleep", "for-ever"},
	"serves":   {"http", ":8080", "here", "catch", "sleep", "for-ever"},
}

var programNames = []string{"counts", "echoes", "quits", "serves", "stays", "stubborn"} // in a fixed order, for the seed

func (m *mix) newPod(r *rand.Rand) *pod {
	m.mu.Lock()
	m.made++
	seq := m.made
	m.mu.Unlock()
	name := fmt.Sprintf("pod-%d", seq)
	ns := &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}
	p := &pod{config: &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "soak", Uid: "uid-" + name},
		Hostname:     name,
		LogDirectory: filepath.Join(m.n.dir, "logs", name),
		Labels:       map[string]string{label: name},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    "/crisp-soak",
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: ns},
		},
	}}
	switch r.IntN(4) {
	case 0, 1:
		ns.Network, p.config.Hostname = cri.NamespaceMode_NODE, ""
	case 2:
		p.hostPort = int32(20000 + seq%20000)
		p.config.PortMappings = []*cri.PortMapping{{HostPort: p.hostPort, ContainerPort: 8080}}
	}
	if r.IntN(4) == 0 {
		ns.Pid = cri.NamespaceMode_POD
	}
	return p
}

// runPod runs a pod as the kubelet does: a call without an answer is repeated.
func (m *mix) runPod(ctx context.Context, r *rand.Rand) {
	m.mu.Lock()
	full := len(m.pods) >= maxPods
	m.mu.Unlock()
	if full {
		m.removePod(ctx, r)
		return
	}
	p := m.newPod(r)
	if err := os.MkdirAll(p.config.LogDirectory, 0o755); err != nil {
		m.n.calls.wrongAnswer("make the log directory: %v", err)
		return
	}
	asked := 0
	// If a kill has ended an earlier run of this pod, its name stays taken.
	ctx = about(ctx, func() bool { return asked > 1 })
	err := m.insist(ctx, func(ctx context.Context) error {
		asked++
		resp, err := m.n.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config})
		p.id = resp.GetPodSandboxId()
		return err
	})
	if err != nil {
		m.abandon(p) // the error is counted
		return
	}
	m.mu.Lock()
	m.pods = append(m.pods, p)
	m.mu.Unlock()
	for range 1 + r.IntN(2) {
		m.runContainer(ctx, r, p)
	}
}

// abandon records a pod whose existence is unknown.
func (m *mix) abandon(p *pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.abandoned = append(m.abandoned, p.config)
}

func (m *mix) addContainer(ctx context.Context, r *rand.Rand) {
	if p := m.somePod(r); p != nil {
		m.runContainer(ctx, r, p)
	}
}

func (m *mix) runContainer(ctx context.Context, r *rand.Rand, p *pod) {
	m.mu.Lock()
	full := len(p.containers) >= maxContainers
	p.made++
	name := fmt.Sprintf("c%d", p.made)
	m.mu.Unlock()
	if full {
		return
	}
	c := &container{pod: p, program: programNames[r.IntN(len(programNames))], cutOff: m.n.cutOff}
	network := p.config.Linux.SecurityContext.NamespaceOptions.Network
	if c.program == "serves" && (network == cri.NamespaceMode_NODE || p.serves.Swap(true)) {
		c.program = "stays" // the port is not free
	}
	image := "base"
	extra := r.IntN(5) == 0
	if extra {
		image = fmt.Sprintf("extra%d", r.IntN(extraImages))
	}
	c.config = &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name},
		Image:    &cri.ImageSpec{Image: m.n.registry.ref(image)},
		Command:  []string{"/testbin"},
		Args:     programs[c.program],
		LogPath:  name + ".log",
		Labels:   map[string]string{label: name},
		Stdin:    c.program == "echoes",
		Tty:      c.program == "echoes" && r.IntN(3) == 0,
		Linux: &cri.LinuxContainerConfig{
			Resources:       &cri.LinuxContainerResources{CpuShares: 100, MemoryLimitInBytes: 64 << 20},
			SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: p.config.Linux.SecurityContext.NamespaceOptions},
		},
	}
	ctx = about(ctx, func() bool { return p.halted() })
	if extra {
		if m.insist(ctx, func(ctx context.Context) error {
			_, err := m.n.images.PullImage(ctx, &cri.PullImageRequest{Image: c.config.Image})
			return err
		}) != nil {
			return
		}
		ctx = about(ctx, func() bool { return true }) // the image may be removed meanwhile
	}
	c.born = time.Now()
	if m.insist(ctx, func(ctx context.Context) error {
		resp, err := m.n.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: p.id, Config: c.config, SandboxConfig: p.config})
		c.id = resp.GetContainerId()
		return err
	}) != nil {
		return
	}
	_, err := m.n.runtime.StartContainer(about(ctx, func() bool { return p.halted() }), &cri.StartContainerRequest{ContainerId: c.id})
	if err != nil {
		return // it is unknown whether it runs
	}
	m.mu.Lock()
	p.containers = append(p.containers, c)
	m.mu.Unlock()
}

func (m *mix) stopContainer(ctx context.Context, r *rand.Rand) {
	if c := m.someContainer(r); c != nil {
		c.stopped.Store(true)
		_, _ = m.n.runtime.StopContainer(about(ctx, c.gone), &cri.StopContainerRequest{ContainerId: c.id, Timeout: r.Int64N(2)})
	}
}

func (m *mix) removeContainer(ctx context.Context, r *rand.Rand) {
	c := m.someContainer(r)
	if c == nil {
		return
	}
	c.removed.Store(true)
	if m.insist(about(ctx, c.gone), func(ctx context.Context) error {
		_, err := m.n.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.id})
		return err
	}) == nil {
		m.forget(nil, c)
	}
}

func (m *mix) stopPod(ctx context.Context, r *rand.Rand) {
	if p := m.somePod(r); p != nil {
		p.stopped.Store(true)
		_, _ = m.n.runtime.StopPodSandbox(about(ctx, p.gone), &cri.StopPodSandboxRequest{PodSandboxId: p.id})
	}
}

func (m *mix) removePod(ctx context.Context, r *rand.Rand) {
	p := m.somePod(r)
	if p == nil {
		return
	}
	p.stopped.Store(true)
	p.removed.Store(true)
	if m.insist(about(ctx, p.gone), func(ctx context.Context) error { return m.removeSandbox(ctx, p.id) }) == nil {
		m.forget(p, nil)
		_ = os.RemoveAll(p.config.LogDirectory) // leftovers are found at the end
	}
}

func (m *mix) removeSandbox(ctx context.Context, id string) error {
	if _, err := m.n.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return err
	}
	_, err := m.n.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

// forget removes a pod or a container that was removed from those that actions use.
func (m *mix) forget(p *pod, c *container) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c != nil {
		c.pod.containers = without(c.pod.containers, c)
		return
	}
	m.pods = without(m.pods, p)
}

func without[T comparable](list []T, gone T) []T {
	var kept []T
	for _, v := range list {
		if v != gone {
			kept = append(kept, v)
		}
	}
	return kept
}

// insist repeats a call until it has an answer, as long as kills explain the lack of one. A caller
// that has given up calls again, and then waits.
func (m *mix) insist(ctx context.Context, call func(ctx context.Context) error) error {
	s, _ := ctx.Value(subjectKey{}).(subject)
	deadline := time.Now().Add(patience)
	for {
		began := time.Now()
		err := call(ctx)
		if err == nil || !lost(status.Code(err)) || began.After(deadline) || !m.n.beside(began) && (s.cut == nil || !s.cut()) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
		if s.cut != nil {
			s.cut = nil
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(context.WithValue(context.WithoutCancel(ctx), subjectKey{}, s), patience)
			defer cancel()
		}
	}
}

// removeAll removes everything over CRI. Pods whose calls were abandoned are collected first, or
// left to crispd, which removes them after two minutes.
func (m *mix) removeAll(ctx context.Context, collect bool) error {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	for _, p := range m.abandoned {
		if collect {
			_, _ = m.n.runtime.RunPodSandbox(about(ctx, func() bool { return true }), &cri.RunPodSandboxRequest{Config: p})
		}
	}
	m.abandoned = nil
	m.mu.Lock()
	m.pods = nil
	m.mu.Unlock()
	for quiet := 0; quiet < 3; {
		found, err := m.removeWhatIsListed(ctx)
		if err != nil {
			return err
		}
		if quiet++; found {
			quiet = 0
		}
		if !sleep(ctx, 500*time.Millisecond) {
			return errors.New("what is removed is listed again and again")
		}
	}
	return os.RemoveAll(filepath.Join(m.n.dir, "logs"))
}

func (m *mix) removeWhatIsListed(ctx context.Context) (found bool, err error) {
	n := m.n
	containers, err1 := n.runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	pods, err2 := n.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	images, err3 := n.images.ListImages(ctx, &cri.ListImagesRequest{})
	if err := errors.Join(err1, err2, err3); err != nil {
		return false, err
	}
	var errs []error
	for _, c := range containers.Containers {
		_, err := n.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.Id})
		errs = append(errs, err)
	}
	for _, p := range pods.Items {
		errs = append(errs, m.removeSandbox(ctx, p.Id))
	}
	for _, i := range images.Images {
		_, err := n.images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: i.Id}})
		errs = append(errs, err)
	}
	return len(containers.Containers)+len(pods.Items)+len(images.Images) > 0, errors.Join(errs...)
}
