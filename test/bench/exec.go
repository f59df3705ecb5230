package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// execBlock is the number of execs whose mean is one sample of CPU time.
const execBlock = 10

func (b *bench) exec(ctx context.Context) {
	for _, k := range []kind{restricted, plain} {
		pods := map[string]*pod{}
		b.each(ctx, "pod", func(e *endpoint) error {
			p := b.newPod(e, "host", k)
			if err := e.up(ctx, p, nil); err != nil {
				return err
			}
			pods[e.name] = p
			return e.exec(ctx, p.id)
		})
		for range b.execs {
			b.each(ctx, "ExecSync", func(e *endpoint) error { return b.execs10(ctx, e, pods[e.name].id, k) })
		}
		b.each(ctx, "pod", func(e *endpoint) error { return e.down(ctx, pods[e.name], nil) })
	}
}

// execs10 runs a block of execs, one after the other.
func (b *bench) execs10(ctx context.Context, e *endpoint, container string, k kind) error {
	record := b.timed("ExecSync true", e)
	spent, err := meter(func() error {
		for range execBlock {
			if err := record.call(ctx, string(k), func(ctx context.Context) error { return e.exec(ctx, container) }); err != nil {
				return err
			}
		}
		sleep(ctx, 50*time.Millisecond) // for work that a runtime does after its answer
		return nil
	})
	if err == nil {
		b.report.add("ExecSync true", string(k)+", CPU", "ms", e.name, milliseconds(spent)/execBlock)
	}
	return err
}

// probes measures one endpoint at a time, with its pods.
func (b *bench) probes(ctx context.Context) {
	b.each(ctx, "probes", func(e *endpoint) error {
		pods, err := b.running(ctx, e, "host", b.probePods)
		if err != nil {
			return err
		}
		sleep(ctx, b.settle)
		if err := b.probe(ctx, e, pods); err != nil {
			return err
		}
		return b.remove(ctx, e, pods)
	})
}

// probe probes each pod once a second, as a kubelet does: the pods at different times, and each
// only after its last probe was answered. The first second is not sampled.
func (b *bench) probe(ctx context.Context, e *endpoint, pods []*pod) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var answered atomic.Int64
	var wg sync.WaitGroup
	for _, p := range pods {
		wg.Go(func() {
			sleep(ctx, rand.N(time.Second))
			for tick := time.NewTicker(time.Second); ctx.Err() == nil; {
				if err := e.exec(ctx, p.id); err != nil {
					if ctx.Err() == nil {
						cancel(fmt.Errorf("ExecSync: %w", err))
					}
					return
				}
				answered.Add(1)
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	group := fmt.Sprintf("%d pods with an exec probe each second", len(pods))
	sleep(ctx, time.Second)
	for range b.probeSeconds {
		before, begin := answered.Load(), time.Now()
		spent, err := meter(func() error { sleep(ctx, time.Second); return nil })
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			cancel(err)
			break
		}
		took, n := time.Since(begin), float64(answered.Load()-before)
		b.report.add(group, "answered", "probes/s", e.name, n/took.Seconds())
		b.report.add(group, "CPU used", "cores", e.name, spent.Seconds()/took.Seconds())
		if n > 0 {
			b.report.add(group, "CPU per probe", "ms", e.name, milliseconds(spent)/n)
		}
	}
	err := context.Cause(ctx)
	cancel(nil)
	wg.Wait()
	return err
}

// meter returns the CPU time that the machine, without this process, has used during f.
func meter(f func() error) (time.Duration, error) {
	before, err := othersCPU()
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := othersCPU()
	if err != nil {
		return 0, err
	}
	return after - before, nil
}

func othersCPU() (time.Duration, error) {
	all, err := machineCPU(os.DirFS("/"))
	if err != nil {
		return 0, err
	}
	return all - ownCPU(), nil
}
