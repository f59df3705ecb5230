package image

import (
	"regexp"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
)

var (
	hexID   = regexp.MustCompile(`^[0-9a-f]{1,64}$`)
	shortID = regexp.MustCompile(`^[0-9a-f]{4,63}$`)
)

// Get returns the image that ref names: an ID with or without "sha256:", a tag, a name (meaning
// its tag "latest"), a name with a digest, or a unique prefix of an ID. Errors: fault.NotFound;
// fault.Invalid for an ambiguous prefix or a bad name.
func (s *Store) Get(ref string) (Image, error) {
	e, err := s.find(ref)
	if err != nil {
		return Image{}, err
	}
	return e.Image, nil
}

func (s *Store) find(ref string) (*entry, error) {
	c := s.catalog.Load()
	id := strings.TrimPrefix(ref, "sha256:")
	if e, ok := c.byID[id]; ok {
		return e, nil
	}
	var bad error
	if !strings.HasPrefix(ref, "sha256:") && !(len(id) == 64 && hexID.MatchString(id)) {
		names, err := s.registries.Names(ref)
		bad = err // unless it is an ID
		for _, name := range names {
			if e, ok := c.byName[name.String()]; ok {
				return e, nil
			}
		}
	} else if !hexID.MatchString(id) {
		return nil, fault.Invalid.Errorf("image ID %q is not hexadecimal", ref)
	}
	var found *entry
	if shortID.MatchString(id) {
		for full, e := range c.byID {
			if !strings.HasPrefix(full, id) {
				continue
			}
			if found != nil {
				return nil, fault.Invalid.Errorf("image ID %q is ambiguous", ref)
			}
			found = e
		}
	}
	if found == nil && bad != nil {
		return nil, bad
	}
	if found == nil {
		return nil, fault.NotFound.Errorf("no image %q", ref)
	}
	return found, nil
}
