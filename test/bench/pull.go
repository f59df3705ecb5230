package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The groups of pulls: of an image with some layers, and of one with a single large layer, of which a runtime can do little at a time.
const (
	pullGroup     = "Pull"
	oneLayerGroup = "Pull of one large layer"
)

// pull measures pulls of both images.
func (b *bench) pull(ctx context.Context) {
	for _, p := range []struct{ group, image string }{{pullGroup, b.pullImage}, {oneLayerGroup, b.layerImage}} {
		if p.image != "" {
			b.pullOf(ctx, p.group, p.image)
		}
	}
}

func (b *bench) pullOf(ctx context.Context, group, image string) {
	for range b.pulls {
		b.each(ctx, "pull", func(e *endpoint) error {
			if err := e.removeImage(ctx, image); err != nil {
				return err
			}
			if err := quiet(ctx); err != nil {
				return err
			}
			if err := b.timed(group, e).call(ctx, "PullImage", func(ctx context.Context) error { return e.pullImage(ctx, image) }); err != nil {
				return err
			}
			return b.timed(group, e).call(ctx, "RemoveImage", func(ctx context.Context) error { return e.removeImage(ctx, image) })
		})
	}
	sleep(ctx, afterPull)
	b.each(ctx, "memory after pulls", func(e *endpoint) error {
		m, err := readMemory(e)
		if err == nil {
			b.report.add(group, pssAfterPull, "MiB", e.name, m.pss)
		}
		return err
	})
	b.forget(ctx, image)
}

// afterPull is how long a runtime has time to return what its pulls took.
const afterPull = 10 * time.Second

const pssAfterPull = "PSS 10 s after the last"

// forget removes an image from all endpoints; one that is left does no harm.
func (b *bench) forget(ctx context.Context, image string) {
	for i := range b.endpoints {
		b.endpoints[i].removeImage(context.WithoutCancel(ctx), image)
	}
}

func (e *endpoint) pullImage(ctx context.Context, image string) error {
	_, err := e.images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}})
	return err
}

func (e *endpoint) removeImage(ctx context.Context, image string) error {
	_, err := e.images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: image}})
	return err
}

const (
	quietFor     = 500 * time.Millisecond // how long the machine must be idle
	quietCPU     = quietFor / 3           // CPU time that counts as idle: other processes poll
	quietSectors = 2048                   // sectors written that count as idle
	quietMost    = 30 * time.Second
)

// quiet flushes dirty pages and waits until processors and disks are idle: by then a runtime has
// finished its garbage collection in the background.
func quiet(ctx context.Context) error {
	for deadline := time.Now().Add(quietMost); ; {
		unix.Sync()
		before, err := sectorsWritten()
		if err != nil {
			return err
		}
		spent, err := meter(func() error { sleep(ctx, quietFor); return nil })
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		after, err := sectorsWritten()
		if err != nil {
			return err
		}
		if spent < quietCPU && after-before < quietSectors {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not quiet after %v: in %v %v of CPU time and %d sectors written", quietMost, quietFor, spent, after-before)
		}
	}
}

func sectorsWritten() (int64, error) {
	data, err := os.ReadFile("/proc/diskstats")
	if err != nil {
		return 0, err
	}
	return parseDiskstats(string(data))
}

// parseDiskstats adds up the sectors written of all disks: the tenth field of a line (Documentation/admin-guide/iostats.rst).
func parseDiskstats(stats string) (sum int64, err error) {
	for line := range strings.Lines(stats) {
		f := strings.Fields(line)
		if len(f) < 10 {
			return 0, fmt.Errorf("/proc/diskstats has the line %q", line)
		}
		n, err := strconv.ParseInt(f[9], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/diskstats: %w", err)
		}
		sum += n
	}
	return sum, nil
}
