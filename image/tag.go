package image

import (
	"slices"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"go.podman.io/image/v5/docker/reference"
)

// Tag adds a tag to the image that ref names; an image that has the tag loses it.
func (s *Store) Tag(ref, tag string) (Image, error) {
	name, err := reference.ParseDockerRef(tag)
	if err != nil {
		return Image{}, fault.Invalid.Errorf("image name %q: %w", tag, err)
	}
	if _, digested := name.(reference.Digested); digested {
		return Image{}, fault.Invalid.Errorf("image name %q: a tag cannot be a digest", tag)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.find(ref)
	if err != nil {
		return Image{}, err
	}
	if slices.Contains(e.Tags, name.String()) {
		return e.Image, nil
	}
	r := e.record
	r.Tags, r.Updated = merge(r.Tags, []string{name.String()}), time.Now()
	next, err := s.publish(e.hex(), r, e.layers)
	if err != nil {
		return Image{}, err
	}
	return next.Image, s.untag(next, []string{name.String()})
}
