// Package imagegc removes unused images when their file system is too full, and those that have
// been unused for a long time. It never removes pinned images or images in use. The rules are
// the kubelet's.
package imagegc

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/periodic"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Images is the part of CRI's image service that a Collector uses.
type Images interface {
	ListImages(ctx context.Context, filter *cri.ImageFilter) ([]*cri.Image, error)
	RemoveImage(ctx context.Context, image *cri.ImageSpec) error
}

// Options say when a Collector removes images.
type Options struct {
	Images Images
	Node   Node
	High   int           // percent of disk usage at which removal starts; 100 is never
	Low    int           // percent of disk usage at which removal stops
	Min    time.Duration // minimum age of an image to be removed for space
	Max    time.Duration // how long an image may be unused before it is removed; 0 is forever
	Log    *slog.Logger
}

// A Node is the node that has the images.
type Node interface {
	// ImagesInUse returns the IDs and names of the images that containers were created
	// from or have mounted.
	ImagesInUse(ctx context.Context) (map[string]bool, error)
	// ImageSpace returns the space of the images' file system, in bytes.
	ImageSpace(ctx context.Context) (capacity, available int64, err error)
	// ImagesFull is called when removing images did not free enough space.
	ImagesFull(message string)
}

// The kubelet's defaults.
const (
	DefaultHigh = 85
	DefaultLow  = 80
	DefaultMin  = 2 * time.Minute
	period      = 5 * time.Minute
)

// A Collector removes images.
type Collector struct {
	o   Options
	now func() time.Time

	mu   sync.Mutex
	seen map[string]times // by ID; nil before the first look; guarded by mu
}

type times struct {
	first, used time.Time // when the image was first seen, and last in use
	earlier     bool      // it existed at the first look
}

// New returns a Collector that has seen no images yet.
func New(o Options) *Collector {
	return &Collector{o: o, now: time.Now}
}

// Run calls Collect at once and then every period, until ctx ends.
func (c *Collector) Run(ctx context.Context) {
	collect := func(ctx context.Context) {
		if err := c.Collect(ctx); err != nil && ctx.Err() == nil {
			c.o.Log.WarnContext(ctx, "images not collected", "err", err)
		}
	}
	collect(ctx)
	periodic.Run(ctx, period, collect)
}

type candidate struct {
	image *cri.Image
	times
}

// detect records which images exist and which are in use now. It returns the unused images that
// are not pinned, least recently used first.
func (c *Collector) detect(ctx context.Context) ([]candidate, error) {
	used, err := c.o.Node.ImagesInUse(ctx)
	if err != nil {
		return nil, err
	}
	list, err := c.o.Images.ListImages(ctx, nil)
	if err != nil {
		return nil, err
	}
	now, old := c.now(), c.seen
	c.seen = map[string]times{}
	var free []candidate
	for _, image := range list {
		t, known := old[image.Id]
		if !known {
			t.first, t.earlier = now, old == nil
		}
		inUse := isUsed(image, used)
		if inUse {
			t.used = now
		}
		c.seen[image.Id] = t
		if !inUse && !image.Pinned {
			free = append(free, candidate{image, t})
		}
	}
	slices.SortFunc(free, func(a, b candidate) int {
		return cmp.Or(a.used.Compare(b.used), a.first.Compare(b.first), cmp.Compare(a.image.Id, b.image.Id))
	})
	return free, nil
}

// isUsed reports whether used has the image's ID or one of its names.
func isUsed(image *cri.Image, used map[string]bool) bool {
	return used[image.Id] || slices.ContainsFunc(slices.Concat(image.RepoTags, image.RepoDigests), func(name string) bool { return used[name] })
}

// Collect removes images that have been unused for longer than Max and, if the file system is at
// least High percent full, other unused images until it is Low percent full. If they do not free
// enough it calls ImagesFull and fails.
func (c *Collector) Collect(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	free, err := c.detect(ctx)
	if err != nil {
		return err
	}
	if c.o.Max > 0 {
		free = slices.DeleteFunc(free, func(f candidate) bool {
			last := f.first
			if f.used.After(last) {
				last = f.used
			}
			return c.now().Sub(last) > c.o.Max && c.remove(ctx, f, "it has been unused for too long")
		})
	}
	capacity, available, err := c.o.Node.ImageSpace(ctx)
	if err != nil || capacity <= 0 {
		return err
	}
	if used := 100 - int(available*100/capacity); used < c.o.High || c.o.High >= 100 {
		return nil
	}
	need := capacity*int64(100-c.o.Low)/100 - available
	if freed := c.free(ctx, free, need); freed < need {
		text := fmt.Sprintf("Insufficient free disk space on the node's image filesystem (%d%% of %d bytes used). Failed to free sufficient space by deleting unused images (freed %d bytes).",
			100-available*100/capacity, capacity, freed)
		c.o.Node.ImagesFull(text)
		return fmt.Errorf("%d bytes had to be freed, but only %d could be", need, freed)
	}
	return nil
}

// FreeAll removes every unused image that is old enough (Min). It returns the bytes freed.
func (c *Collector) FreeAll(ctx context.Context) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	free, err := c.detect(ctx)
	if err != nil {
		return 0, err
	}
	return c.free(ctx, free, math.MaxInt64), nil
}

func (c *Collector) free(ctx context.Context, free []candidate, need int64) (freed int64) {
	for _, f := range free {
		if freed >= need {
			break
		}
		if !f.earlier && c.now().Sub(f.first) < c.o.Min {
			continue // it was just pulled and may be about to be used
		}
		if c.remove(ctx, f, "space is needed") {
			freed += int64(f.image.Size)
		}
	}
	return freed
}

// remove removes an image, unless a container has been created of it since it was listed.
func (c *Collector) remove(ctx context.Context, f candidate, why string) bool {
	used, err := c.o.Node.ImagesInUse(ctx)
	if err != nil {
		c.o.Log.WarnContext(ctx, "unused image not removed: images in use are unknown", "image", f.image.Id, "err", err)
		return false
	}
	if isUsed(f.image, used) {
		f.used = c.now()
		c.seen[f.image.Id] = f.times
		return false
	}
	if err := c.o.Images.RemoveImage(ctx, &cri.ImageSpec{Image: f.image.Id}); err != nil {
		c.o.Log.WarnContext(ctx, "unused image not removed", "image", f.image.Id, "err", err)
		return false
	}
	c.o.Log.InfoContext(ctx, "unused image removed", "image", f.image.Id, "tags", f.image.RepoTags, "size", f.image.Size, "why", why)
	delete(c.seen, f.image.Id)
	return true
}
