package housekeeping

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// disk has 1000 bytes, and images of 100 bytes each.
type disk struct {
	internalapi.ImageManagerService

	images []*cri.Image
	used   map[string]bool
	full   string          // the reported error
	begin  func(id string) // called before each removal, if not nil
}

func (d *disk) ListImages(context.Context, *cri.ImageFilter) ([]*cri.Image, error) {
	return d.images, nil
}

func (d *disk) RemoveImage(_ context.Context, spec *cri.ImageSpec) error {
	if d.begin != nil {
		d.begin(spec.Image)
	}
	d.images = slices.DeleteFunc(slices.Clone(d.images), func(i *cri.Image) bool { return i.Id == spec.Image })
	return nil
}

func (d *disk) ImageSpace(context.Context) (int64, int64, error) {
	return 1000, 1000 - 100*int64(len(d.images)), nil
}

func (d *disk) ImagesInUse(context.Context) (map[string]bool, error) { return d.used, nil }

func (d *disk) ImagesFull(message string) { d.full = message }

func (d *disk) ids() string {
	var ids []string
	for _, i := range d.images {
		ids = append(ids, i.Id)
	}
	return strings.Join(ids, " ")
}

func TestCollect(t *testing.T) {
	used := map[string]bool{"b": true, "c:1": true}
	d := &disk{used: used}
	now := time.Unix(1000, 0)
	c := newCollector(Rules{ImageHigh: 85, ImageLow: 60, ImageMin: time.Minute}, d, d, slog.New(slog.DiscardHandler))
	c.now = func() time.Time { return now }
	if err := c.Collect(t.Context()); err != nil {
		t.Error(err)
	}
	for _, id := range strings.Fields("a b c d e f g h i") {
		d.images = append(d.images, &cri.Image{Id: id, RepoTags: []string{id + ":1"}, Size: 100, Pinned: id == "a"})
	}
	if err := c.Collect(t.Context()); err == nil || d.full == "" || len(d.images) != 9 {
		t.Errorf("images that had just come: %s, %v", d.ids(), err)
	}
	now = now.Add(time.Hour)
	used["d"] = true
	if err := c.Collect(t.Context()); err != nil || d.ids() != "a b c d h i" {
		t.Errorf("from 90 to 60 %%: %s, %v", d.ids(), err)
	}
	if err := c.Collect(t.Context()); err != nil || len(d.images) != 6 {
		t.Errorf("below the threshold: %s, %v", d.ids(), err)
	}
	// The most recently used image is removed last.
	delete(used, "d")
	for _, id := range []string{"x", "y", "z"} {
		d.images = append(d.images, &cri.Image{Id: id, Size: 100})
	}
	now = now.Add(time.Hour)
	if err := c.Collect(t.Context()); err != nil || d.ids() != "a b c x y z" {
		t.Errorf("all that is old enough: %s, %v", d.ids(), err)
	}
	// An image that was just pulled is about to be used, and would have to be pulled again at once.
	if freed, err := c.FreeAll(t.Context()); err != nil || freed != 0 || d.ids() != "a b c x y z" {
		t.Errorf("all, that had just come: %d, %s, %v", freed, d.ids(), err)
	}
	now = now.Add(time.Minute)
	if freed, err := c.FreeAll(t.Context()); err != nil || freed != 300 || d.ids() != "a b c" {
		t.Errorf("all: %d, %s, %v", freed, d.ids(), err)
	}
	c.rules.ImageMax = time.Hour
	delete(used, "b")
	now = now.Add(59 * time.Minute)
	if err := c.Collect(t.Context()); err != nil || d.ids() != "a b c" {
		t.Errorf("used 59 minutes ago: %s, %v", d.ids(), err)
	}
	now = now.Add(2 * time.Minute)
	if err := c.Collect(t.Context()); err != nil || d.ids() != "a c" {
		t.Errorf("used 61 minutes ago: %s, %v", d.ids(), err)
	}
}

// An image from before the agent's start does not count as just pulled.
func TestImagesOfEarlier(t *testing.T) {
	d := &disk{images: []*cri.Image{{Id: "a", Size: 900}}}
	c := newCollector(Rules{ImageHigh: 85, ImageLow: 60, ImageMin: time.Minute}, d, d, slog.New(slog.DiscardHandler))
	if freed, err := c.FreeAll(t.Context()); err != nil || freed != 900 {
		t.Errorf("%d bytes freed, %v", freed, err)
	}
}

// A container may be created of a listed image while other images are removed (Kubernetes issue
// 123631).
func TestImageUsedMeanwhileIsKept(t *testing.T) {
	for name, all := range map[string]func(*collector) error{
		"space is needed": func(c *collector) error { _, err := c.FreeAll(t.Context()); return err },
		"unused too long": func(c *collector) error { return c.Collect(t.Context()) },
	} {
		d := &disk{used: map[string]bool{}}
		d.images = []*cri.Image{{Id: "a", Size: 100}, {Id: "b", RepoTags: []string{"b:1"}, Size: 100}, {Id: "c", Size: 100}}
		d.begin = func(string) { d.used["b:1"] = true }
		c := newCollector(Rules{ImageHigh: 100, ImageLow: 60, ImageMax: time.Hour}, d, d, slog.New(slog.DiscardHandler))
		now := time.Unix(1000, 0)
		c.now = func() time.Time { return now }
		if err := c.Collect(t.Context()); err != nil || d.ids() != "a b c" {
			t.Errorf("%s: images that have just been listed: %s, %v", name, d.ids(), err)
		}
		now = now.Add(2 * time.Hour)
		if err := all(c); err != nil || d.ids() != "b" {
			t.Errorf("%s: left is %s, %v; want b", name, d.ids(), err)
		}
		// Its last use is now, not when it was listed.
		clear(d.used)
		if err := c.Collect(t.Context()); err != nil || d.ids() != "b" {
			t.Errorf("%s: used a moment ago: left is %s, %v; want b", name, d.ids(), err)
		}
	}
}
