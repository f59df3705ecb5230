package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// netGroup returns the name, in the table and in goals, of a measurement with pods of a network.
func netGroup(what, net string) string {
	switch net {
	case "bridge":
		return what + ", standard bridge"
	case "default":
		return what + ", each one's own network"
	}
	return what + ", host network"
}

func (b *bench) lifecycle(ctx context.Context, net string, k kind) {
	group := netGroup("One restricted pod", net)
	if k == plain {
		group = netGroup("One pod without seccomp", net)
	}
	b.rounded(ctx, group, func(e *endpoint) *pod { return b.newPod(e, net, k) }, nil)
}

// handlerGroup returns the same of pods of a handler.
func handlerGroup(name string) string { return "One restricted pod, handler " + name }

// handler measures pods of a handler that each endpoint has, with an exec between up and down.
func (b *bench) handler(ctx context.Context, name string) {
	b.rounded(ctx, handlerGroup(name), func(e *endpoint) *pod {
		p := b.newPod(e, "default", restricted)
		p.handler = name
		return p
	}, func(e *endpoint, p *pod, t timing) error { return e.timedExec(ctx, p, t) })
}

func (e *endpoint) timedExec(ctx context.Context, p *pod, t timing) error {
	return t.call(ctx, "ExecSync true", func(ctx context.Context) error { return e.exec(ctx, p.id) })
}

// around takes a pod up and down, and calls while between the two, unless it is nil.
func (e *endpoint) around(ctx context.Context, p *pod, t timing, while func(e *endpoint, p *pod, t timing) error) error {
	if err := e.up(ctx, p, t); err != nil {
		return err
	}
	if while != nil {
		if err := while(e, p, t); err != nil {
			return err
		}
	}
	return e.down(ctx, p, t)
}

// rounded measures pods up and down, one after the other; while is called between the two, unless it
// is nil.
func (b *bench) rounded(ctx context.Context, group string, newPod func(e *endpoint) *pod, while func(e *endpoint, p *pod, t timing) error) {
	upAndDown := func(e *endpoint, t timing) error { return e.around(ctx, newPod(e), t, while) }
	b.each(ctx, "first pod", func(e *endpoint) error { return upAndDown(e, nil) })
	for range b.rounds {
		b.each(ctx, "pod", func(e *endpoint) error {
			took := durations{}
			if err := upAndDown(e, took.add); err != nil {
				return err
			}
			took.record(b.timed(group, e))
			return nil
		})
	}
}

// durations are those of a pod's calls.
type durations map[string]time.Duration

func (took durations) add(call string, d time.Duration) { took[call] = d }

// record adds the calls of a pod, and their sums, to the report.
func (took durations) record(to timing) {
	for _, call := range podCalls {
		if d, ok := took[call]; ok {
			to(call, d)
		}
	}
	started := took["CreateContainer"] + took["StartContainer"]
	to("create + start", started)
	to("whole pod up", took["RunPodSandbox"]+started)
	to("whole pod down", took["StopContainer"]+took["RemoveContainer"]+took["StopPodSandbox"]+took["RemovePodSandbox"])
}

// podCalls are the calls of a pod, in their order.
var podCalls = []string{"RunPodSandbox", "CreateContainer", "StartContainer", "ExecSync true", "exec -it, first byte", "exec -it, to its end",
	"StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"}

// besideGroup is the group of pods whose runtime pulls an image meanwhile.
const besideGroup = "One restricted pod beside pulls, host network"

// besidePulls measures pods up and down, one after the other, for as long as each of -pulls pulls takes.
func (b *bench) besidePulls(ctx context.Context) {
	for range b.pulls {
		b.each(ctx, "pod beside a pull", func(e *endpoint) error {
			if err := e.removeImage(ctx, b.pullImage); err != nil {
				return err
			}
			pulled := make(chan error, 1)
			go func() { pulled <- e.pullImage(ctx, b.pullImage) }()
			for {
				took := durations{}
				err := b.upAndDown(ctx, e, "host", restricted, took.add)
				select {
				case perr := <-pulled:
					return errors.Join(err, perr)
				default:
				}
				if err != nil {
					return errors.Join(err, <-pulled)
				}
				took.record(b.timed(besideGroup, e))
			}
		})
	}
	b.forget(ctx, b.pullImage)
}

func (b *bench) churn(ctx context.Context, net string) {
	row := fmt.Sprintf("pods up and down, %d workers", b.workers)
	for range b.batches {
		b.each(ctx, "pods", func(e *endpoint) error {
			took, err := b.parallel(ctx, b.batch, func(ctx context.Context, _ int) error { return b.upAndDown(ctx, e, net, restricted, nil) })
			if err == nil {
				b.report.add(netGroup("Churn, restricted pods", net), row, "pods/s", e.name, float64(b.batch)/took.Seconds())
			}
			return err
		})
	}
}
