package image

import (
	"context"
	"slices"
	"strings"

	"go.podman.io/image/v5/docker/reference"
)

// Allowed asks the policy of namespace whether the image id may be used there
// under the name that its user knows it by; if that is "", under any of the names
// that it was pulled or loaded by. It uses the signatures that came with the
// pull, and no network. An image that the policy does not allow: *PullError.
func (s *Store) Allowed(ctx context.Context, namespace, name, id string) error {
	e, err := s.find(id)
	if err != nil {
		return err
	}
	names := e.names()
	if name != "" {
		full, err := s.registries.Names(name)
		// Of what a short name stands for it is the one that is this image.
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
