package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var allPhases = []string{"memory", "list", "exec", "lifecycle", "throughput", "pull"}

// bench is one run.
type bench struct {
	options
	logs   string
	report *report

	failed map[string]bool // endpoints that failed in this phase, and sit out the rest of it
	turns  int
}

// dial connects to every endpoint, removes what a killed bench left and pulls the image of the pods.
func (b *bench) dial(ctx context.Context) error {
	for i := range b.endpoints {
		e := &b.endpoints[i]
		if err := e.dial(); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		version, err := e.runtime.Version(ctx, &cri.VersionRequest{})
		if err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		b.report.Versions[e.name] = version.RuntimeName + " " + version.RuntimeVersion
		if err := e.clean(ctx); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		image, err := e.images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: b.image}})
		if err != nil {
			return fmt.Errorf("%s: pull %s: %w", e.name, b.image, err)
		}
		e.imageRef = image.ImageRef
	}
	return nil
}

// close removes every pod of the run and the cgroups that their parent left.
func (b *bench) close(ctx context.Context) error {
	var errs []error
	for i := range b.endpoints {
		e := &b.endpoints[i]
		if e.conn == nil {
			continue
		}
		if b.report.Versions[e.name] != "" { // it answered once
			if err := e.clean(ctx); err != nil {
				errs = append(errs, fmt.Errorf("%s: clean up: %w", e.name, err))
			}
		}
		errs = append(errs, e.conn.Close())
	}
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		dirs, _ := filepath.Glob(pattern + b.cgroupParent)
		for _, dir := range dirs {
			removeCgroup(dir)
		}
	}
	return errors.Join(errs...)
}

// removeCgroup removes a cgroup and those below it that nobody is in; the others stay.
func removeCgroup(dir string) {
	var dirs []string
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for _, d := range slices.Backward(dirs) {
		os.Remove(d)
	}
}

// runPhases runs the phases asked for. An endpoint that fails is told of on stderr and sits out the rest of the phase; the error names
// all that did.
func (b *bench) runPhases(ctx context.Context) error {
	incomplete := map[string]bool{}
	phase := func(name string, f func(ctx context.Context)) {
		if ctx.Err() != nil {
			return
		}
		fmt.Fprintln(os.Stderr, "bench:", name)
		b.failed = map[string]bool{}
		f(ctx)
		for name := range b.failed {
			incomplete[name] = true
		}
		b.failed = map[string]bool{}
		b.each(ctx, name, func(e *endpoint) error { return e.clean(context.WithoutCancel(ctx)) })
	}
	has := func(name string) bool { return slices.Contains(b.phases, name) }
	if has("memory") || has("list") {
		phase("memory, list", b.memoryAndList)
	}
	if has("exec") {
		phase("exec", b.exec)
	}
	for _, net := range b.nets {
		if has("lifecycle") {
			phase("lifecycle, "+net, func(ctx context.Context) { b.lifecycle(ctx, net) })
		}
		if has("throughput") {
			phase("throughput, "+net, func(ctx context.Context) { b.throughput(ctx, net) })
		}
	}
	if has("pull") && b.pullImage != "" {
		phase("pull", b.pull)
	}
	if ctx.Err() == nil && len(incomplete) > 0 {
		return fmt.Errorf("not measured in full: %s", strings.Join(slices.Sorted(maps.Keys(incomplete)), ", "))
	}
	return ctx.Err()
}

// each calls f for every endpoint that has not failed in this phase, another one first each time.
func (b *bench) each(ctx context.Context, what string, f func(e *endpoint) error) {
	b.turns++
	for i := range b.endpoints {
		e := &b.endpoints[(i+b.turns)%len(b.endpoints)]
		if b.failed[e.name] || ctx.Err() != nil {
			continue
		}
		if err := f(e); err != nil {
			b.failed[e.name] = true
			fmt.Fprintf(os.Stderr, "bench: %s: %s: %v\n", e.name, what, err)
		}
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// timed makes a timing that adds its calls to a group of the report.
func (b *bench) timed(group string, e *endpoint) timing {
	return func(call string, took time.Duration) { b.report.add(group, call, "ms", e.name, milliseconds(took)) }
}

func (b *bench) memoryAndList(ctx context.Context) {
	const group = "Memory"
	read := func(e *endpoint, pods int) error {
		m, err := readMemory(e)
		if err != nil || m.processes == 0 {
			return err
		}
		at := fmt.Sprintf(", %d pods", pods)
		b.report.add(group, "private"+at, "MiB", e.name, m.private)
		b.report.add(group, "PSS"+at, "MiB", e.name, m.pss)
		b.report.add(group, "processes"+at, "", e.name, float64(m.processes))
		return nil
	}
	if slices.Contains(b.phases, "memory") {
		b.each(ctx, "pod", func(e *endpoint) error { return b.upAndDown(ctx, e, "host", nil) }) // what the first pod loads is there for good
		sleep(ctx, b.settle)
		b.each(ctx, "memory", func(e *endpoint) error { return read(e, 0) })
	}
	for range b.pods {
		b.each(ctx, "pod", func(e *endpoint) error { return e.up(ctx, b.newPod(e, "host"), nil) })
	}
	if slices.Contains(b.phases, "memory") {
		sleep(ctx, b.settle)
		b.each(ctx, "memory", func(e *endpoint) error { return read(e, b.pods) })
		b.report.perPod(group, b.pods)
	}
	if slices.Contains(b.phases, "list") {
		b.list(ctx)
	}
}

func (b *bench) list(ctx context.Context) {
	group := fmt.Sprintf("Lists, %d pods", b.pods)
	for range b.lists {
		b.each(ctx, "ListContainers", func(e *endpoint) error {
			return b.timed(group, e).call(ctx, "ListContainers", func(ctx context.Context) error {
				_, err := e.runtime.ListContainers(ctx, &cri.ListContainersRequest{})
				return err
			})
		})
		b.each(ctx, "ListPodSandbox", func(e *endpoint) error {
			return b.timed(group, e).call(ctx, "ListPodSandbox", func(ctx context.Context) error {
				_, err := e.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
				return err
			})
		})
		b.each(ctx, "ListContainerStats", func(e *endpoint) error {
			return b.timed(group, e).call(ctx, "ListContainerStats", func(ctx context.Context) error {
				res, err := e.runtime.ListContainerStats(ctx, &cri.ListContainerStatsRequest{})
				if err == nil && len(res.Stats) < b.pods {
					err = fmt.Errorf("%d stats of %d containers", len(res.Stats), b.pods)
				}
				return err
			})
		})
	}
}

func (b *bench) exec(ctx context.Context) {
	pods := map[string]*pod{}
	b.each(ctx, "pod", func(e *endpoint) error {
		pods[e.name] = b.newPod(e, "host")
		return e.up(ctx, pods[e.name], nil)
	})
	for range b.execs {
		b.each(ctx, "exec", func(e *endpoint) error {
			return b.timed("Exec", e).call(ctx, "ExecSync true", func(ctx context.Context) error {
				res, err := e.runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: pods[e.name].id, Cmd: []string{"true"}})
				if err == nil && res.ExitCode != 0 {
					err = fmt.Errorf("exit code %d", res.ExitCode)
				}
				return err
			})
		})
	}
}

func (b *bench) upAndDown(ctx context.Context, e *endpoint, net string, t timing) error {
	p := b.newPod(e, net)
	if err := e.up(ctx, p, t); err != nil {
		return err
	}
	return e.down(ctx, p, t)
}

func (b *bench) lifecycle(ctx context.Context, net string) {
	group := "One pod, " + net + " network"
	b.each(ctx, "first pod", func(e *endpoint) error { return b.upAndDown(ctx, e, net, nil) })
	for range b.rounds {
		b.each(ctx, "pod", func(e *endpoint) error {
			took := map[string]time.Duration{}
			record := b.timed(group, e)
			err := b.upAndDown(ctx, e, net, func(call string, d time.Duration) {
				took[call] = d
				record(call, d)
			})
			if err != nil {
				return err
			}
			started := took["CreateContainer"] + took["StartContainer"]
			record("create + start", started)
			record("whole pod up", took["RunPodSandbox"]+started)
			record("whole pod down", took["StopContainer"]+took["RemoveContainer"]+took["StopPodSandbox"]+took["RemovePodSandbox"])
			return nil
		})
	}
}

func (b *bench) throughput(ctx context.Context, net string) {
	for range b.batches {
		b.each(ctx, "pods", func(e *endpoint) error {
			took, err := b.parallel(ctx, func(ctx context.Context) error { return b.upAndDown(ctx, e, net, nil) })
			if err == nil {
				b.report.add("Throughput, "+net+" network", fmt.Sprintf("pods up and down, %d workers", b.workers), "pods/s", e.name,
					float64(b.batch)/took.Seconds())
			}
			return err
		})
	}
}

// parallel calls f b.batch times from b.workers goroutines and tells how long that took. The first error ends it.
func (b *bench) parallel(ctx context.Context, f func(ctx context.Context) error) (time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan struct{}, b.batch)
	for range b.batch {
		work <- struct{}{}
	}
	close(work)
	start := time.Now()
	var wg sync.WaitGroup
	for range b.workers {
		wg.Go(func() {
			for range work {
				if ctx.Err() != nil {
					return
				}
				if err := f(ctx); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(start), context.Cause(ctx)
}

func (b *bench) pull(ctx context.Context) {
	spec := &cri.ImageSpec{Image: b.pullImage}
	remove := func(ctx context.Context, e *endpoint) error {
		_, err := e.images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: spec})
		return err
	}
	for range b.pulls {
		b.each(ctx, "pull", func(e *endpoint) error {
			if err := remove(ctx, e); err != nil {
				return err
			}
			sleep(ctx, time.Second) // runtimes that collect what was removed in the background do so now
			unix.Sync()
			return b.timed("Pull", e).call(ctx, "PullImage", func(ctx context.Context) error {
				_, err := e.images.PullImage(ctx, &cri.PullImageRequest{Image: spec})
				return err
			})
		})
	}
	for i := range b.endpoints {
		remove(context.WithoutCancel(ctx), &b.endpoints[i]) // an image that is left does not harm
	}
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
