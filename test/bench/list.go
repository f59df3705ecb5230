package main

import (
	"context"
	"fmt"
	"slices"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// lists has the calls that a kubelet makes for all pods of a node.
var lists = []struct {
	name string
	call func(ctx context.Context, e *endpoint) error
}{
	{"ListPodSandbox", func(ctx context.Context, e *endpoint) error {
		_, err := e.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
		return err
	}},
	{"ListContainers", func(ctx context.Context, e *endpoint) error {
		_, err := e.runtime.ListContainers(ctx, &cri.ListContainersRequest{})
		return err
	}},
	{"ListContainerStats", func(ctx context.Context, e *endpoint) error {
		_, err := e.runtime.ListContainerStats(ctx, &cri.ListContainerStatsRequest{})
		return err
	}},
	{"ListPodSandboxStats", func(ctx context.Context, e *endpoint) error {
		_, err := e.runtime.ListPodSandboxStats(ctx, &cri.ListPodSandboxStatsRequest{})
		return err
	}},
}

func listGroup(pods int) string { return fmt.Sprintf("Lists, %d pods", pods) }

func (b *bench) memoryAndList(ctx context.Context) {
	const group = "Memory"
	none := map[string]float64{} // private memory
	read := func(e *endpoint, pods int) error {
		m, err := readMemory(e)
		if err != nil || m.processes == 0 {
			return err
		}
		at := fmt.Sprintf(", %d pods", pods)
		b.report.add(group, "private"+at, "MiB", e.name, m.private)
		b.report.add(group, "PSS"+at, "MiB", e.name, m.pss)
		b.report.add(group, "processes"+at, "", e.name, float64(m.processes))
		if pods == 0 {
			none[e.name] = m.private
		} else {
			b.report.add(group, "private per pod", "MiB", e.name, (m.private-none[e.name])/float64(pods))
		}
		return nil
	}
	if slices.Contains(b.phases, "memory") {
		// The memory that a runtime allocates for its first pod is never freed.
		b.each(ctx, "pod", func(e *endpoint) error { return b.upAndDown(ctx, e, "host", restricted, nil) })
		sleep(ctx, b.settle)
		b.each(ctx, "memory", func(e *endpoint) error { return read(e, 0) })
	}
	for range b.pods {
		b.each(ctx, "pod", func(e *endpoint) error { return e.up(ctx, b.newPod(e, "host", restricted), nil) })
	}
	if slices.Contains(b.phases, "memory") {
		sleep(ctx, b.settle)
		b.each(ctx, "memory", func(e *endpoint) error { return read(e, b.pods) })
	}
	if slices.Contains(b.phases, "list") {
		for range b.lists {
			for _, l := range lists {
				b.each(ctx, l.name, func(e *endpoint) error {
					return b.timed(listGroup(b.pods), e).call(ctx, l.name, func(ctx context.Context) error { return l.call(ctx, e) })
				})
			}
		}
	}
}
