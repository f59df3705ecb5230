package registry

import (
	"context"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/image"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"
)

// A Choice is the image of this platform among those that a name stands for.
type Choice struct {
	blob.Manifest
	Top    digest.Digest // of what the name stands for: a manifest, or a list of them
	Proofs []Proof       // for asking a policy later
}

// Choose finds the image of this platform at the first place that gives it. An image that the
// policy does not allow is a *PullError; for other errors, see Failure.
func (r *Source) Choose(ctx context.Context) (Choice, error) {
	for {
		src := r.current()
		c, err := r.chooseAt(ctx, src)
		if err == nil || ctx.Err() != nil || !isAway(err) && statusOf(err) == 0 || r.next(ctx, src) != nil {
			return c, err
		}
	}
}

// chooseAt reads the manifest, or the one for this platform if it is a list, and asks the
// policy whether the image may be used.
func (r *Source) chooseAt(ctx context.Context, src types.ImageSource) (c Choice, err error) {
	var instance *digest.Digest
	for range blob.MaxNesting {
		img := image.UnparsedInstance(src, instance)
		var data []byte
		var kind string
		err := r.bounded(ctx, func(ctx context.Context) error {
			data, kind, err = img.Manifest(ctx) // verified against the digest asked for
			return err
		})
		if err == nil {
			kind, err = blob.KindOf(data, kind)
		}
		if err != nil {
			return Choice{}, err
		}
		if c.Top == "" {
			if c.Top, err = manifest.Digest(data); err != nil {
				return Choice{}, fault.Invalid.Errorf("manifest: %w", err)
			}
		}
		if !manifest.MIMETypeIsMultiImage(kind) {
			if err := r.bounded(ctx, func(ctx context.Context) error { return allow(ctx, r.sys, img) }); err != nil {
				return Choice{}, err
			}
			c.Proofs = r.prove(ctx, img)
			c.Manifest, err = blob.ReadManifest(data, kind)
			return c, err
		}
		if instance, err = blob.ChoosePlatform(data, kind, r.sys); err != nil {
			return Choice{}, err
		}
	}
	return Choice{}, fault.Invalid.Errorf("more than %d lists of manifests lie within each other", blob.MaxNesting)
}
