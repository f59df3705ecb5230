package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	maxPods       = 10
	maxContainers = 3
)

// A mix has the objects that the clients have made, and the clients' actions.
type mix struct {
	n       *node
	o       options
	actions []action
	sum     int // of the actions' weights

	mu   sync.Mutex
	pods []*pod // guarded by mu, as their containers are
	made int    // number of pods ever made; guarded by mu

	abandoned []*cri.PodSandboxConfig // guarded by mu
}

// A phase is a part of a soak.
type phase struct {
	name  string
	life  time.Duration
	kills bool
}

type action struct {
	weight int
	do     func(ctx context.Context, r *rand.Rand)
}

func newMix(n *node, o options) *mix {
	m := &mix{n: n, o: o}
	m.actions = []action{
		{8, m.runPod}, {10, m.addContainer}, {4, m.stopContainer}, {5, m.removeContainer}, {2, m.stopPod}, {4, m.removePod},
		{12, m.execSync}, {2, m.execTimeout}, {6, m.execStream}, {4, m.attach}, {4, m.portForward}, {3, m.getHostPort},
		{5, m.reopen}, {5, m.stats}, {5, m.lists}, {6, m.statuses}, {3, m.events}, {4, m.pull}, {3, m.removeImage}, {4, m.update},
		{8, m.givesUp}, {3, m.vanishes},
	}
	if checkpoints() {
		m.actions = append(m.actions, action{2, m.checkpoint})
	}
	for _, a := range m.actions {
		m.sum += a.weight
	}
	return m
}

// checkpoints reports whether the node can make checkpoints.
func checkpoints() bool {
	_, err := exec.LookPath("criu")
	return err == nil
}

// play runs the clients for the duration of the phase.
func (m *mix) play(ctx context.Context, s phase) error {
	over, cancel := context.WithTimeout(ctx, s.life)
	defer cancel()
	base := &cri.ImageSpec{Image: m.n.registry.ref("base")}
	if _, err := m.n.images.PullImage(ctx, &cri.PullImageRequest{Image: base}); err != nil {
		return err
	}
	var (
		work  sync.WaitGroup
		ended error
	)
	for i := range m.o.clients {
		r := rand.New(rand.NewPCG(m.o.seed, uint64(i)<<8|uint64(s.name[0])))
		work.Go(func() {
			for over.Err() == nil {
				m.act(ctx, r)
			}
		})
	}
	if s.kills {
		r := rand.New(rand.NewPCG(m.o.seed, 1<<32))
		work.Go(func() {
			for ended == nil && sleep(over, time.Duration(500+r.IntN(4000))*time.Millisecond) {
				what := r.IntN(5)
				ended = m.n.kill(ctx, what != 0, what < 2)
			}
			if ended != nil {
				cancel()
			}
		})
	}
	work.Wait()
	if ended == nil {
		ended = ctx.Err()
	}
	return ended
}

// act does one action.
func (m *mix) act(ctx context.Context, r *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m.pick(r)(ctx, r)
	sleep(ctx, time.Duration(r.IntN(60))*time.Millisecond)
}

func (m *mix) pick(r *rand.Rand) func(ctx context.Context, r *rand.Rand) {
	at := r.IntN(m.sum)
	for _, a := range m.actions {
		if at -= a.weight; at < 0 {
			return a.do
		}
	}
	panic("no action")
}

// sleep waits for d, and returns false if ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (m *mix) somePod(r *rand.Rand) *pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pods) == 0 {
		return nil
	}
	return m.pods[r.IntN(len(m.pods))]
}

func (m *mix) someContainer(r *rand.Rand, programs ...string) *container {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*container
	for _, p := range m.pods {
		for _, c := range p.containers {
			if len(programs) == 0 || slices.Contains(programs, c.program) {
				all = append(all, c)
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[r.IntN(len(all))]
}

func (m *mix) execSync(ctx context.Context, r *rand.Rand) {
	c := m.someContainer(r)
	if c == nil {
		return
	}
	word := fmt.Sprint("word-", r.Uint32())
	began := time.Now()
	resp, err := m.n.runtime.ExecSync(about(ctx, c.ended), &cri.ExecSyncRequest{ContainerId: c.id, Cmd: []string{"/testbin", "print", word, "exit", "3"}})
	if err == nil && (string(resp.Stdout) != word+"\n" || resp.ExitCode != 3) && !c.ended() && !m.n.beside(began) {
		m.n.calls.wrongAnswer("exec in %s of %s printed %q and ended with %d, want %q and 3", c.config.Metadata.Name, c.pod.config.Metadata.Name, resp.Stdout, resp.ExitCode, word)
	}
}

// execTimeout executes a program that does not end by itself, with a timeout.
func (m *mix) execTimeout(ctx context.Context, r *rand.Rand) {
	c := m.someContainer(r)
	if c == nil {
		return
	}
	ctx = about(ctx, func() bool { return true }) // the call must fail
	_, err := m.n.runtime.ExecSync(explained(ctx), &cri.ExecSyncRequest{ContainerId: c.id, Cmd: []string{"/testbin", "sleep", "for-ever"}, Timeout: 1})
	if err == nil && !c.ended() {
		m.n.calls.wrongAnswer("an exec that is to be ended by its timeout succeeded")
	}
}

// reopen rotates a log: it renames the file and calls ReopenContainerLog.
func (m *mix) reopen(ctx context.Context, r *rand.Rand) {
	c := m.someContainer(r)
	if c == nil {
		return
	}
	_ = os.Rename(c.log(), c.log()+".1") // the log is gone with its pod, or does not exist yet
	_, _ = m.n.runtime.ReopenContainerLog(about(ctx, c.ended), &cri.ReopenContainerLogRequest{ContainerId: c.id})
}

func (m *mix) stats(ctx context.Context, r *rand.Rand) {
	switch r.IntN(6) {
	case 0:
		_, _ = m.n.runtime.ListContainerStats(ctx, &cri.ListContainerStatsRequest{})
	case 1:
		_, _ = m.n.runtime.ListPodSandboxStats(ctx, &cri.ListPodSandboxStatsRequest{})
	case 2:
		_, _ = m.n.runtime.ListPodSandboxMetrics(ctx, &cri.ListPodSandboxMetricsRequest{})
	case 3:
		_, _ = m.n.images.ImageFsInfo(ctx, &cri.ImageFsInfoRequest{})
	case 4:
		if p := m.somePod(r); p != nil {
			_, _ = m.n.runtime.PodSandboxStats(about(ctx, p.halted), &cri.PodSandboxStatsRequest{PodSandboxId: p.id})
		}
	case 5:
		if c := m.someContainer(r); c != nil {
			_, _ = m.n.runtime.ContainerStats(about(ctx, c.ended), &cri.ContainerStatsRequest{ContainerId: c.id})
		}
	}
}

func (m *mix) lists(ctx context.Context, r *rand.Rand) {
	switch r.IntN(4) {
	case 0:
		_, _ = m.n.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	case 1:
		_, _ = m.n.runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	case 2:
		_, _ = m.n.images.ListImages(ctx, &cri.ListImagesRequest{})
	case 3:
		_, _ = m.n.runtime.Status(ctx, &cri.StatusRequest{Verbose: true})
	}
}

func (m *mix) statuses(ctx context.Context, r *rand.Rand) {
	if r.IntN(2) == 0 {
		if p := m.somePod(r); p != nil {
			resp, err := m.n.runtime.PodSandboxStatus(about(ctx, p.gone), &cri.PodSandboxStatusRequest{PodSandboxId: p.id, Verbose: true})
			if err == nil && resp.Status.State != cri.PodSandboxState_SANDBOX_READY && !p.halted() {
				m.n.calls.wrongAnswer("pod %s is %v, and was not stopped", p.config.Metadata.Name, resp.Status.State)
			}
		}
		return
	}
	c := m.someContainer(r)
	if c == nil {
		return
	}
	resp, err := m.n.runtime.ContainerStatus(about(ctx, c.gone), &cri.ContainerStatusRequest{ContainerId: c.id, Verbose: true})
	if err != nil {
		return
	}
	st := resp.Status
	switch {
	case st.State == cri.ContainerState_CONTAINER_RUNNING || c.taken() || c.cutOff(c.born):
	case c.program == "quits" && st.State == cri.ContainerState_CONTAINER_EXITED && st.ExitCode == 7:
	default:
		m.n.calls.wrongAnswer("container %s of %s (%s) is %v, exit code %d, %s %s, and was not stopped",
			c.config.Metadata.Name, c.pod.config.Metadata.Name, c.program, st.State, st.ExitCode, st.Reason, st.Message)
	}
}

func (m *mix) pull(ctx context.Context, r *rand.Rand) {
	ref := m.n.registry.ref(fmt.Sprintf("extra%d", r.IntN(extraImages)))
	_, _ = m.n.images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}})
	_, _ = m.n.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}, Verbose: true})
}

func (m *mix) removeImage(ctx context.Context, r *rand.Rand) {
	ref := m.n.registry.ref(fmt.Sprintf("extra%d", r.IntN(extraImages)))
	_, _ = m.n.images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: ref}})
}

func (m *mix) update(ctx context.Context, r *rand.Rand) {
	shares := int64(2 + r.IntN(1000))
	if r.IntN(3) == 0 {
		if p := m.somePod(r); p != nil {
			_, _ = m.n.runtime.UpdatePodSandboxResources(about(ctx, p.halted), &cri.UpdatePodSandboxResourcesRequest{
				PodSandboxId: p.id, Resources: &cri.LinuxContainerResources{CpuShares: shares}})
		}
		return
	}
	if c := m.someContainer(r); c != nil {
		_, _ = m.n.runtime.UpdateContainerResources(about(ctx, c.ended), &cri.UpdateContainerResourcesRequest{
			ContainerId: c.id, Linux: &cri.LinuxContainerResources{CpuShares: shares, MemoryLimitInBytes: 128 << 20}})
	}
}

func (m *mix) checkpoint(ctx context.Context, r *rand.Rand) {
	c := m.someContainer(r, "stays", "counts")
	if c == nil {
		return
	}
	file := filepath.Join(m.n.dir, fmt.Sprintf("checkpoint-%d.tar", r.Uint32()))
	_, _ = m.n.runtime.CheckpointContainer(about(ctx, c.ended), &cri.CheckpointContainerRequest{ContainerId: c.id, Location: file, Timeout: 60})
	_ = os.Remove(file)
}

// givesUp starts an action and gives up during it.
func (m *mix) givesUp(ctx context.Context, r *rand.Rand) {
	do := m.pick(r)
	ctx, cancel := within(ctx, time.Duration(r.IntN(100))*time.Millisecond)
	defer cancel()
	do(ctx, r)
}

// vanishes acts like a client that is killed during a call: its connection closes.
func (m *mix) vanishes(ctx context.Context, r *rand.Rand) {
	var (
		mu    sync.Mutex
		socks []net.Conn
		gone  atomic.Bool
	)
	conn, err := m.n.dial(func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		socks = append(socks, c)
	})
	if err != nil {
		m.n.calls.wrongAnswer("dial: %v", err)
		return
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(givesUp(ctx, gone.Load))
	defer cancel()
	time.AfterFunc(time.Duration(r.IntN(100))*time.Millisecond, func() {
		gone.Store(true)
		mu.Lock()
		defer mu.Unlock()
		for _, c := range socks {
			c.Close()
		}
		cancel()
	})
	client := cri.NewRuntimeServiceClient(conn)
	switch c := m.someContainer(r); {
	case c == nil || r.IntN(3) == 0:
		p := m.newPod(r)
		m.abandon(p)
		_, _ = client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config})
	case r.IntN(2) == 0:
		_, _ = client.ExecSync(about(ctx, c.ended), &cri.ExecSyncRequest{ContainerId: c.id, Cmd: []string{"/testbin", "sleep", "1s"}})
	default:
		c.stopped.Store(true)
		_, _ = client.StopContainer(about(ctx, c.gone), &cri.StopContainerRequest{ContainerId: c.id, Timeout: 1})
	}
}
