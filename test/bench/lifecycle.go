package main

import (
	"context"
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
	b.each(ctx, "first pod", func(e *endpoint) error { return b.upAndDown(ctx, e, net, k, nil) })
	for range b.rounds {
		b.each(ctx, "pod", func(e *endpoint) error {
			took := map[string]time.Duration{}
			record := b.timed(group, e)
			err := b.upAndDown(ctx, e, net, k, func(call string, d time.Duration) {
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
