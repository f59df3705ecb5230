package image

import (
	"context"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/image"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"
)

// A choice is the image of this platform among those that a name stands for.
type choice struct {
	blob.Manifest
	top    digest.Digest // of what the name stands for: a manifest, or a list of them
	proofs []proof       // what a policy can be asked with later
}

// choose finds the image of this platform at the first place that gives it.
func (r *registry) choose(ctx context.Context) (choice, error) {
	for {
		src := r.current()
		c, err := r.chooseAt(ctx, src)
		if err == nil || ctx.Err() != nil || !isAway(err) && statusOf(err) == 0 || r.next(ctx, src) != nil {
			return c, err
		}
	}
}

// chooseAt reads the manifest, or follows the list of manifests to that of this
// platform, and asks the policy whether the image may be used.
func (r *registry) chooseAt(ctx context.Context, src types.ImageSource) (c choice, err error) {
	var instance *digest.Digest
	for range blob.MaxNesting {
		img := image.UnparsedInstance(src, instance)
		var data []byte
		var kind string
		err := r.bounded(ctx, func(ctx context.Context) error {
			data, kind, err = img.Manifest(ctx) // verified against the digest asked for
			return err
		})
		if err != nil {
			return choice{}, err
		}
		if c.top == "" {
			if c.top, err = manifest.Digest(data); err != nil {
				return choice{}, fault.Invalid.Errorf("manifest: %w", err)
			}
		}
		if !manifest.MIMETypeIsMultiImage(kind) {
			if err := r.bounded(ctx, func(ctx context.Context) error { return allow(ctx, r.sys, img) }); err != nil {
				return choice{}, err
			}
			c.proofs = r.prove(ctx, img)
			c.Manifest, err = blob.ReadManifest(data, kind)
			return c, err
		}
		if instance, err = blob.ChoosePlatform(data, kind, r.sys); err != nil {
			return choice{}, err
		}
	}
	return choice{}, fault.Invalid.Errorf("more than %d lists of manifests lie within each other", blob.MaxNesting)
}
