package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A thing makes objects stuck, which must not affect others.
type thing struct {
	name  string
	begin func(ctx context.Context, s *stuckNode) error
}

// A stuckNode is a node for measurements beside stuck objects: before they are stuck, and while
// they are. Then the cause is removed, everything is removed over CRI, and that must succeed
// without further help.
type stuckNode struct {
	*mix
	stand *pod       // a pod with a container, for statuses and execs
	inner *container // that container

	ends []func() error // undo the thing, last first
	work sync.WaitGroup // calls that hang
}

// A sample has the durations of calls, by name.
type sample map[string][]time.Duration

func stuck(ctx context.Context, n *node, o options) error {
	wanted, err := regexp.Compile(o.stuck)
	if err != nil {
		return fmt.Errorf("-stuck: %w", err)
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "beside\tcall\tmedian\tbeside it\tratio\tp99\tbeside it\tratio\t\n")
	var errs []error
	for _, t := range things {
		if !wanted.MatchString(t.name) {
			continue
		}
		fmt.Println("soak: beside", t.name)
		before, after, err := beside(ctx, n, o, t)
		if err != nil {
			errs = append(errs, fmt.Errorf("beside %s: %w", t.name, err))
		}
		for _, call := range slices.Sorted(maps.Keys(after)) {
			m1, m2 := percentile(before[call], 50), percentile(after[call], 50)
			p1, p2 := percentile(before[call], 99), percentile(after[call], 99)
			verdict := ""
			if ratio(m2, m1) > 2 {
				verdict = "MORE THAN TWICE"
			}
			fmt.Fprintf(w, "%s\t%s\t%v\t%v\t%.1f\t%v\t%v\t%.1f\t%s\n", t.name, call, rounded(m1), rounded(m2), ratio(m2, m1), rounded(p1), rounded(p2), ratio(p2, p1), verdict)
		}
		if ctx.Err() != nil {
			break
		}
	}
	w.Flush()
	fmt.Println("\n" + b.String())
	return errors.Join(append(errs, ctx.Err())...)
}

func rounded(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

func ratio(a, b time.Duration) float64 {
	if b == 0 {
		return math.NaN()
	}
	return float64(a) / float64(b)
}

// percentile returns the smallest value that at least p percent of all do not exceed.
func percentile(all []time.Duration, p float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(int(math.Ceil(p/100*float64(len(sorted)))), 1)-1]
}

// beside measures without and with one thing.
func beside(ctx context.Context, n *node, o options, t thing) (before, after sample, err error) {
	ctx = explained(ctx)
	s := &stuckNode{mix: newMix(n, o)}
	defer func() { err = errors.Join(err, s.end(ctx)) }()
	base := &cri.ImageSpec{Image: n.registry.ref("base")}
	if _, err := n.images.PullImage(ctx, &cri.PullImageRequest{Image: base}); err != nil {
		return nil, nil, err
	}
	if s.stand, s.inner, err = s.podOf(ctx, "stand", nil, nil, "stays"); err != nil {
		return nil, nil, err
	}
	if t.name == manyStops {
		if err := s.crowd(ctx); err != nil {
			return nil, nil, err
		}
	}
	if before, err = s.measureCalls(ctx, nil); err != nil {
		return nil, nil, err
	}
	after, err = s.measureCalls(ctx, func() error { return t.begin(ctx, s) })
	if err != nil || t.name == manyStops { // its pods do not exist any more
		return before, after, err
	}
	// The machine's speed drifts, so the normal case is measured before and after.
	if err := s.over(); err != nil {
		return nil, nil, err
	}
	again, err := s.measureCalls(ctx, nil)
	for call, took := range again {
		before[call] = append(before[call], took...)
	}
	return before, after, err
}

// over removes the cause.
func (s *stuckNode) over() error {
	var errs []error
	for _, end := range slices.Backward(s.ends) {
		errs = append(errs, end())
	}
	s.ends = nil
	s.work.Wait()
	return errors.Join(errs...)
}

// measureCalls makes all calls, and then stops pods. It makes these pods before begin, if that is
// not nil, makes something stuck, because a full disk does not allow new ones.
func (s *stuckNode) measureCalls(ctx context.Context, begin func() error) (sample, error) {
	took := sample{}
	var toStop []*container
	for range max(s.o.rounds/5, 1) {
		s.made++
		_, c, err := s.podOf(ctx, fmt.Sprintf("to-stop-%d", s.made), nil, nil, "stays")
		if err != nil {
			return nil, err
		}
		toStop = append(toStop, c)
	}
	if begin != nil {
		if err := begin(); err != nil {
			return nil, err
		}
	}
	timed := func(name string, call func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		began := time.Now()
		err := call(ctx)
		took[name] = append(took[name], time.Since(began))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	for range s.o.rounds {
		for _, c := range s.calls() {
			if err := timed(c.name, c.call); err != nil {
				return took, err
			}
		}
	}
	r := s.n.runtime
	for _, c := range toStop {
		if err := timed("StopContainer", func(ctx context.Context) error {
			_, err := r.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.id, Timeout: 30})
			return err
		}); err != nil {
			return took, err
		}
		if err := timed("StopPodSandbox", func(ctx context.Context) error {
			_, err := r.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: c.pod.id})
			return err
		}); err != nil {
			return took, err
		}
	}
	return took, nil
}

// A namedCall is a call of CRI.
type namedCall struct {
	name string
	call func(ctx context.Context) error
}

// calls returns the calls that a kubelet repeats.
func (s *stuckNode) calls() []namedCall {
	r, i := s.n.runtime, s.n.images
	return []namedCall{
		{"Status", func(ctx context.Context) error { _, err := r.Status(ctx, &cri.StatusRequest{}); return err }},
		{"ListPodSandbox", func(ctx context.Context) error {
			_, err := r.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
			return err
		}},
		{"ListContainers", func(ctx context.Context) error {
			_, err := r.ListContainers(ctx, &cri.ListContainersRequest{})
			return err
		}},
		{"ListContainerStats", func(ctx context.Context) error {
			_, err := r.ListContainerStats(ctx, &cri.ListContainerStatsRequest{})
			return err
		}},
		{"ListPodSandboxStats", func(ctx context.Context) error {
			_, err := r.ListPodSandboxStats(ctx, &cri.ListPodSandboxStatsRequest{})
			return err
		}},
		{"ListImages", func(ctx context.Context) error { _, err := i.ListImages(ctx, &cri.ListImagesRequest{}); return err }},
		{"PodSandboxStatus", func(ctx context.Context) error {
			_, err := r.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: s.stand.id})
			return err
		}},
		{"ContainerStatus", func(ctx context.Context) error {
			_, err := r.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: s.inner.id})
			return err
		}},
	}
}

// podOf runs a pod on the node's network, with one container of the program; for "" ofContainer
// sets the arguments. ofPod and ofContainer may change the configurations, or be nil.
func (s *stuckNode) podOf(ctx context.Context, name string, ofPod func(*cri.PodSandboxConfig), ofContainer func(*cri.ContainerConfig), program string) (*pod, *container, error) {
	p := &pod{config: s.sandboxConfig(name)}
	if ofPod != nil {
		ofPod(p.config)
	}
	if err := os.MkdirAll(p.config.LogDirectory, 0o755); err != nil {
		return nil, nil, err
	}
	resp, err := s.n.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config})
	if err != nil {
		return nil, nil, err
	}
	p.id = resp.PodSandboxId
	c := &container{pod: p, program: program, config: &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "c"}, Image: &cri.ImageSpec{Image: s.n.registry.ref("base")},
		Command: []string{"/testbin"}, Args: programs[program], LogPath: "c.log",
		Linux: &cri.LinuxContainerConfig{
			Resources:       &cri.LinuxContainerResources{CpuShares: 10},
			SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: p.config.Linux.SecurityContext.NamespaceOptions},
		},
	}}
	if ofContainer != nil {
		ofContainer(c.config)
	}
	created, err := s.n.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: p.id, Config: c.config, SandboxConfig: p.config})
	if err != nil {
		return p, nil, err
	}
	c.id = created.ContainerId
	_, err = s.n.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.id})
	return p, c, err
}

func (s *stuckNode) sandboxConfig(name string) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "stuck", Uid: "uid-" + name},
		LogDirectory: filepath.Join(s.n.dir, "logs", name),
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: "/crisp-soak",
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{
				Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER,
			}},
		},
	}
}

// hangs makes a call in the background. It is awaited only at the end.
func (s *stuckNode) hangs(call func()) { s.work.Go(call) }

// end removes the cause, and removes everything by CRI.
func (s *stuckNode) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*patience)
	defer cancel()
	errs := []error{s.over()}
	// The calls that hung are ending now; a kubelet also retries a removal.
	var err error
	for range 20 {
		if err = s.removeAll(ctx, false); err == nil || ctx.Err() != nil {
			break
		}
		time.Sleep(time.Second)
	}
	return errors.Join(append(errs, err)...)
}
