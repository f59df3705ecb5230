package image

import (
	"context"
	"slices"
	"strings"

	"go.podman.io/image/v5/docker/reference"
)

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
