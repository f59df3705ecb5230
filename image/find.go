package image

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"go.podman.io/image/v5/docker/reference"

	"github.com/crisp-cri/crisp/internal/fault"
)

var (
	hexID   = regexp.MustCompile(`^[0-9a-f]{1,64}$`)
	shortID = regexp.MustCompile(`^[0-9a-f]{4,63}$`)
)

// Get returns the image that ref names: an ID with or without "sha256:", a tag, a name (meaning
// its tag "latest"), a name with a digest (that was pulled, or of this platform's manifest in the
// list that was), or a unique prefix of an ID. Errors: fault.NotFound;
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

// Allowed checks whether the policy of namespace allows the image id there under name, the name
// its user knows it by; if name is "", under any name it was pulled or loaded by. It uses the
// signatures that came with the pull, and no network. If the policy does not allow the image,
// the error is a *PullError.
func (s *Store) Allowed(ctx context.Context, namespace, name, id string) error {
	e, err := s.find(id)
	if err != nil {
		return err
	}
	names := e.names()
	if name != "" {
		full, err := s.registries.Names(name)
		// A short name stands for several full names; take the one that is this image.
		i := slices.IndexFunc(full, func(f reference.Named) bool { return slices.Contains(names, f.String()) })
		switch isID := strings.HasPrefix(e.hex(), strings.TrimPrefix(name, "sha256:")); {
		case i < 0 && isID: // then it is any of the names
		case err != nil:
			return err
		default:
			names = []string{full[max(i, 0)].String()}
		}
	}
	return s.registries.AllowPresent(ctx, namespace, names, e.ID, e.record.Proofs)
}
