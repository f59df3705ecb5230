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

func (b *bench) pull(ctx context.Context) {
	for range b.pulls {
		b.each(ctx, "pull", func(e *endpoint) error {
			if err := b.removePulled(ctx, e); err != nil {
				return err
			}
			if err := quiet(ctx); err != nil {
				return err
			}
			err := b.timed("Pull", e).call(ctx, "PullImage", func(ctx context.Context) error {
				_, err := e.images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: b.pullImage}})
				return err
			})
			if err != nil {
				return err
			}
			return b.timed("Pull", e).call(ctx, "RemoveImage", func(ctx context.Context) error { return b.removePulled(ctx, e) })
		})
	}
	for i := range b.endpoints {
		b.removePulled(context.WithoutCancel(ctx), &b.endpoints[i]) // an image that is left does no harm
	}
}

func (b *bench) removePulled(ctx context.Context, e *endpoint) error {
	_, err := e.images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: b.pullImage}})
	return err
}

const (
	quietFor     = 500 * time.Millisecond // how long the machine must be idle
	quietCPU     = quietFor / 5           // CPU time that counts as idle
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
