package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// manySamples is the number of calls at each number of pods.
const manySamples = 10

// manyPods fills one endpoint at a time, with more and more pods.
func (b *bench) manyPods(ctx context.Context) {
	b.each(ctx, "many pods", func(e *endpoint) error {
		var pods []*pod
		for _, n := range b.many {
			more, err := b.running(ctx, e, b.manyNet, n-len(pods))
			if err != nil {
				return err
			}
			pods = append(pods, more...)
			if err := b.among(ctx, e, pods); err != nil {
				return fmt.Errorf("%d pods: %w", n, err)
			}
		}
		return b.remove(ctx, e, pods)
	})
}

// among measures a runtime with these pods.
func (b *bench) among(ctx context.Context, e *endpoint, pods []*pod) error {
	n := len(pods)
	add := func(row, unit string, value float64) { b.report.addAt(row, unit, e.name, n, value) }
	record := timing(func(call string, d time.Duration) { add(call, "ms", milliseconds(d)) })
	sleep(ctx, b.settle)
	for range manySamples {
		p := b.newPod(e, b.manyNet, restricted)
		for _, step := range []struct {
			name string
			call func(ctx context.Context) error
		}{
			{"pod up", func(ctx context.Context) error { return e.up(ctx, p, nil) }},
			{"ExecSync true", func(ctx context.Context) error { return e.exec(ctx, p.id) }},
			{"pod down", func(ctx context.Context) error { return e.down(ctx, p, nil) }},
		} {
			if err := record.call(ctx, step.name, step.call); err != nil {
				return err
			}
		}
		for _, l := range lists {
			if err := record.call(ctx, l.name, func(ctx context.Context) error { return l.call(ctx, e) }); err != nil {
				return err
			}
		}
	}
	m, err := readMemory(e)
	if err != nil {
		return err
	}
	add("PSS", "MiB", m.pss)
	if e.ctl == "" {
		return nil
	}
	return b.restarts(ctx, e, n, record)
}

// restarts measures the time from the daemon's start until it lists all its pods.
func (b *bench) restarts(ctx context.Context, e *endpoint, pods int, record timing) error {
	for range manySamples {
		if out, err := exec.CommandContext(ctx, e.ctl, "stop").CombinedOutput(); err != nil {
			return fmt.Errorf("%s stop: %w: %s", e.ctl, err, out)
		}
		if err := record.call(ctx, "daemon's start", func(ctx context.Context) error {
			// Without output: the wait for it would block if the daemon inherited the pipe.
			if err := exec.CommandContext(ctx, e.ctl, "start").Run(); err != nil {
				return fmt.Errorf("%s start: %w", e.ctl, err)
			}
			for {
				// A new connection each time: a refused one backs off before it tries again.
				fresh := endpoint{addr: e.addr}
				if err := fresh.dial(); err != nil {
					return err
				}
				list, err := fresh.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
				fresh.conn.Close()
				if err == nil && len(list.Items) >= pods {
					return nil
				}
				if ctx.Err() != nil {
					return fmt.Errorf("has %d pods of %d: %w", len(list.GetItems()), pods, errors.Join(err, ctx.Err()))
				}
				time.Sleep(2 * time.Millisecond)
			}
		}); err != nil {
			return err
		}
	}
	e.conn.ResetConnectBackoff()
	return nil
}
