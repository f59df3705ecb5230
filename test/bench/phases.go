package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var (
	allPhases = []string{"memory", "list", "exec", "lifecycle", "plain", "terminal", "userns", "limit", "handlers", "churn", "probes", "pull", "beside", "engine", "commands", "many"}
	allNets   = []string{"host", "bridge", "default"}
)

// bench is one run.
type bench struct {
	options
	logs   string
	report *report

	failed map[string]bool // endpoints that failed in this phase, and sit out the rest of it
}

// dial connects to every endpoint, removes what a killed bench left and pulls the image of the pods.
func (b *bench) dial(ctx context.Context) error {
	if len(b.phases) == 0 {
		return nil // the table only
	}
	for i := range b.endpoints {
		e := &b.endpoints[i]
		if err := e.dial(); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		version, err := e.runtime.Version(ctx, &cri.VersionRequest{})
		if err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		if err := b.report.version(e.name, version.RuntimeName+" "+version.RuntimeVersion); err != nil {
			return err
		}
		if err := e.clean(ctx); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		image, err := e.images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: b.image}})
		if err != nil {
			return fmt.Errorf("%s: pull %s: %w", e.name, b.image, err)
		}
		e.imageRef = image.ImageRef
	}
	for _, e := range b.engines {
		version, err := e.version(ctx)
		if err != nil {
			return err
		}
		if err := b.report.version(e.name, version); err != nil {
			return err
		}
	}
	for _, c := range b.commandLines {
		version, _, err := c.do(ctx, "version")
		if err != nil {
			return err
		}
		if err := b.report.version(c.name, version); err != nil {
			return err
		}
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
		if e.imageRef != "" { // it has answered before
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

// removeCgroup removes a cgroup and its descendants, except those with processes.
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

// runPhases runs the selected phases. An endpoint that fails is reported on stderr and skipped for
// the rest of the phase; the error names all that failed.
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
			phase("lifecycle, "+net, func(ctx context.Context) { b.lifecycle(ctx, net, restricted) })
		}
		if has("plain") && net == "host" {
			phase("plain", func(ctx context.Context) { b.lifecycle(ctx, net, plain) })
		}
		if has("churn") {
			phase("churn, "+net, func(ctx context.Context) { b.churn(ctx, net) })
		}
	}
	if has("terminal") {
		phase("terminal", b.terminals)
	}
	if has("userns") {
		phase("userns", b.userNamespaces)
	}
	if has("limit") && b.rootfs != "" {
		phase("limit", b.limits)
	}
	for _, name := range b.handlers {
		if has("handlers") {
			phase("handler "+name, func(ctx context.Context) { b.handler(ctx, name) })
		}
	}
	if has("probes") {
		phase("probes", b.probes)
	}
	if has("pull") {
		phase("pull", b.pull)
	}
	if has("beside") && b.pullImage != "" {
		phase("beside", b.besidePulls)
	}
	if has("engine") && len(b.engines) > 0 {
		phase("engine", b.engine)
	}
	if has("commands") {
		phase("commands", b.commands)
	}
	if has("many") {
		phase("many", b.manyPods)
	}
	if ctx.Err() == nil && len(incomplete) > 0 {
		return fmt.Errorf("not measured in full: %s", strings.Join(slices.Sorted(maps.Keys(incomplete)), ", "))
	}
	return ctx.Err()
}

// each calls f for every endpoint that has not failed in this phase, in random order.
func (b *bench) each(ctx context.Context, what string, f func(e *endpoint) error) {
	for _, i := range rand.Perm(len(b.endpoints)) {
		e := &b.endpoints[i]
		if b.failed[e.name] || ctx.Err() != nil {
			continue
		}
		if err := f(e); err != nil {
			b.fail(e.name, what, err)
		}
	}
}

func (b *bench) fail(name, what string, err error) {
	b.failed[name] = true
	fmt.Fprintf(os.Stderr, "bench: %s: %s: %v\n", name, what, err)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// timed returns a timing that adds its calls to a group of the report.
func (b *bench) timed(group string, e *endpoint) timing {
	return func(call string, took time.Duration) { b.report.add(group, call, "ms", e.name, milliseconds(took)) }
}

func (b *bench) upAndDown(ctx context.Context, e *endpoint, net string, k kind, t timing) error {
	p := b.newPod(e, net, k)
	if err := e.up(ctx, p, t); err != nil {
		return err
	}
	return e.down(ctx, p, t)
}

// running starts n restricted pods by b.workers goroutines.
func (b *bench) running(ctx context.Context, e *endpoint, net string, n int) ([]*pod, error) {
	pods := make([]*pod, n)
	for i := range pods {
		pods[i] = b.newPod(e, net, restricted)
	}
	_, err := b.parallel(ctx, n, func(ctx context.Context, i int) error { return e.up(ctx, pods[i], nil) })
	return pods, err
}

func (b *bench) remove(ctx context.Context, e *endpoint, pods []*pod) error {
	_, err := b.parallel(context.WithoutCancel(ctx), len(pods), func(ctx context.Context, i int) error { return e.down(ctx, pods[i], nil) })
	return err
}

// parallel calls f with the numbers below n from b.workers goroutines, and returns the time that
// took. The first error ends it.
func (b *bench) parallel(ctx context.Context, n int, f func(ctx context.Context, i int) error) (time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan int, n)
	for i := range n {
		work <- i
	}
	close(work)
	start := time.Now()
	var wg sync.WaitGroup
	for range b.workers {
		wg.Go(func() {
			for i := range work {
				if ctx.Err() != nil {
					return
				}
				if err := f(ctx, i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(start), context.Cause(ctx)
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
