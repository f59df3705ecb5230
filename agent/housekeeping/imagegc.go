package housekeeping

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/periodic"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// An imageNode is the node that has the images.
type imageNode interface {
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
	DefaultImageHigh = 85
	DefaultImageLow  = 80
	DefaultImageMin  = 2 * time.Minute
	collectPeriod    = 5 * time.Minute
)

// A collector removes unused images when their file system is too full, and those that have been
// unused for a long time. It never removes pinned images or images in use. The rules are the
// kubelet's.
type collector struct {
	rules  Rules
	images internalapi.ImageManagerService
	node   imageNode
	log    *slog.Logger
	now    func() time.Time

	mu   sync.Mutex
	seen map[string]times // by ID; nil before the first look; guarded by mu
}

type times struct {
	first, used time.Time // when the image was first seen, and last in use
	earlier     bool      // it existed at the first look
}

// newCollector returns a collector that has seen no images yet.
func newCollector(rules Rules, images internalapi.ImageManagerService, node imageNode, log *slog.Logger) *collector {
	return &collector{rules: rules, images: images, node: node, log: log, now: time.Now}
}

// Run calls Collect at once and then every period, until ctx ends.
func (c *collector) Run(ctx context.Context) {
	collect := func(ctx context.Context) {
		if err := c.Collect(ctx); err != nil && ctx.Err() == nil {
			c.log.WarnContext(ctx, "images not collected", "err", err)
		}
	}
	collect(ctx)
	periodic.Run(ctx, collectPeriod, collect)
}

type candidate struct {
	image *cri.Image
	times
}

// detect records which images exist and which are in use now. It returns the unused images that
// are not pinned, least recently used first.
func (c *collector) detect(ctx context.Context) ([]candidate, error) {
	used, err := c.node.ImagesInUse(ctx)
	if err != nil {
		return nil, err
	}
	list, err := c.images.ListImages(ctx, nil)
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

// Collect removes images that have been unused for longer than ImageMax and, if the file system is
// at least ImageHigh percent full, other unused images until it is ImageLow percent full. If they
// do not free enough it calls ImagesFull and fails.
func (c *collector) Collect(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	free, err := c.detect(ctx)
	if err != nil {
		return err
	}
	if c.rules.ImageMax > 0 {
		free = slices.DeleteFunc(free, func(f candidate) bool {
			last := f.first
			if f.used.After(last) {
				last = f.used
			}
			return c.now().Sub(last) > c.rules.ImageMax && c.remove(ctx, f, "it has been unused for too long")
		})
	}
	capacity, available, err := c.node.ImageSpace(ctx)
	if err != nil || capacity <= 0 {
		return err
	}
	if used := 100 - int(available*100/capacity); used < c.rules.ImageHigh || c.rules.ImageHigh >= 100 {
		return nil
	}
	need := capacity*int64(100-c.rules.ImageLow)/100 - available
	if freed := c.free(ctx, free, need); freed < need {
		text := fmt.Sprintf("Insufficient free disk space on the node's image filesystem (%d%% of %d bytes used). Failed to free sufficient space by deleting unused images (freed %d bytes).",
			100-available*100/capacity, capacity, freed)
		c.node.ImagesFull(text)
		return fmt.Errorf("%d bytes had to be freed, but only %d could be", need, freed)
	}
	return nil
}

// FreeAll removes every unused image that is old enough (ImageMin). It returns the bytes freed.
func (c *collector) FreeAll(ctx context.Context) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	free, err := c.detect(ctx)
	if err != nil {
		return 0, err
	}
	return c.free(ctx, free, math.MaxInt64), nil
}

func (c *collector) free(ctx context.Context, free []candidate, need int64) (freed int64) {
	for _, f := range free {
		if freed >= need {
			break
		}
		if !f.earlier && c.now().Sub(f.first) < c.rules.ImageMin {
			continue // it was just pulled and may be about to be used
		}
		if c.remove(ctx, f, "space is needed") {
			freed += int64(f.image.Size)
		}
	}
	return freed
}

// remove removes an image, unless a container has been created of it since it was listed.
func (c *collector) remove(ctx context.Context, f candidate, why string) bool {
	used, err := c.node.ImagesInUse(ctx)
	if err != nil {
		c.log.WarnContext(ctx, "unused image not removed: images in use are unknown", "image", f.image.Id, "err", err)
		return false
	}
	if isUsed(f.image, used) {
		f.used = c.now()
		c.seen[f.image.Id] = f.times
		return false
	}
	if err := c.images.RemoveImage(ctx, &cri.ImageSpec{Image: f.image.Id}); err != nil {
		c.log.WarnContext(ctx, "unused image not removed", "image", f.image.Id, "err", err)
		return false
	}
	c.log.InfoContext(ctx, "unused image removed", "image", f.image.Id, "tags", f.image.RepoTags, "size", f.image.Size, "why", why)
	delete(c.seen, f.image.Id)
	return true
}

// imagesDir returns the directory that the runtime reports for its images (ImageFsInfo).
func (k *Keeper) imagesDir(ctx context.Context) (string, error) {
	resp, err := k.o.Images.ImageFsInfo(ctx)
	if err != nil {
		return "", criruntime.Fault(err)
	}
	for _, f := range resp.GetImageFilesystems() {
		if dir := f.GetFsId().GetMountpoint(); dir != "" {
			return dir, nil
		}
	}
	return "", errors.New("the runtime does not report where its images are")
}

// ImageSpace implements imageNode.
func (k *Keeper) ImageSpace(ctx context.Context) (capacity, available int64, err error) {
	dir, err := k.imagesDir(ctx)
	if err != nil {
		return 0, 0, err
	}
	bytes, _, err := Space(dir)
	return bytes.Capacity, bytes.Available, err
}

// ImagesInUse implements imageNode. The images of dead containers are in use too, and so are
// those that pods mount as volumes, and those of an update that may be rolled back.
func (k *Keeper) ImagesInUse(ctx context.Context) (map[string]bool, error) {
	list, err := k.o.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, criruntime.Fault(err)
	}
	used := map[string]bool{}
	for _, container := range list {
		for _, name := range []string{container.GetImageId(), container.GetImageRef(), container.GetImage().GetImage()} {
			used[name] = true
		}
	}
	for name := range k.o.Updates.InUse {
		used[name] = true
	}
	accepted := slices.DeleteFunc(k.o.Files.Accepted(), func(pod *v1.Pod) bool { return k.o.Pods.Finished(pod) && k.o.Driver.Clean(pod.UID) })
	for _, pod := range slices.Concat(k.o.Pods.Active(k.o.Pods.Wanted()), accepted) {
		for i := range pod.Spec.Volumes {
			if image := pod.Spec.Volumes[i].Image; image != nil {
				resp, err := k.o.Images.ImageStatus(ctx, &cri.ImageSpec{Image: image.Reference}, false)
				// Only an answer says what is in use. Another error concerns this reference, and would
				// keep all other images for as long as the pod is there.
				if err = criruntime.Fault(err); errors.Is(err, fault.Unavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
					return nil, fmt.Errorf("image %s of a volume of pod %s: %w", image.Reference, podsync.KeyOf(pod), err)
				}
				used[resp.GetImage().GetId()] = true
			}
		}
	}
	return used, nil
}
