package image

import (
	"context"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/image"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"
)

// maxNesting is how deep an index may lie in an index. Real ones do not.
const maxNesting = 3

// A choice is the image of this platform among those that a name stands for.
type choice struct {
	top      digest.Digest // of what the name stands for: a manifest, or a list of them
	manifest []byte
	artifact bool // files, not a system; then config is of no use
	config   blob
	layers   []blob  // from the lowest; of an artifact those that are files
	proofs   []proof // what a policy can be asked with later
}

// choose finds the image of this platform at the first place that gives it.
func (s *Store) choose(ctx context.Context, r *registry) (choice, error) {
	for {
		src := r.current()
		c, err := s.chooseAt(ctx, r, src)
		if err == nil || ctx.Err() != nil || !isAway(err) && statusOf(err) == 0 || r.next(ctx, src) != nil {
			return c, err
		}
	}
}

// chooseAt reads the manifest, or follows the list of manifests to that of this
// platform, and asks the policy whether the image may be used.
func (s *Store) chooseAt(ctx context.Context, r *registry, src types.ImageSource) (c choice, err error) {
	var instance *digest.Digest
	for range maxNesting {
		img := image.UnparsedInstance(src, instance)
		var blob []byte
		var kind string
		err := r.bounded(ctx, func(ctx context.Context) error {
			blob, kind, err = img.Manifest(ctx) // verified against the digest asked for
			return err
		})
		if err != nil {
			return choice{}, err
		}
		if c.top == "" {
			if c.top, err = manifest.Digest(blob); err != nil {
				return choice{}, fault.Invalid.Errorf("manifest: %w", err)
			}
		}
		if !manifest.MIMETypeIsMultiImage(kind) {
			if err := r.bounded(ctx, func(ctx context.Context) error { return allow(ctx, r.sys, img) }); err != nil {
				return choice{}, err
			}
			c.proofs = s.prove(ctx, r, img)
			err := c.read(blob, kind)
			return c, err
		}
		if instance, err = platform(blob, kind, r.sys); err != nil {
			return choice{}, err
		}
	}
	return choice{}, fault.Invalid.Errorf("more than %d lists of manifests lie within each other", maxNesting)
}

// platform returns the digest of the manifest for this machine in a list.
func platform(list []byte, kind string, sys *types.SystemContext) (*digest.Digest, error) {
	l, err := manifest.ListFromBlob(list, kind)
	if err != nil {
		return nil, fault.Invalid.Errorf("list of manifests: %w", err)
	}
	d, err := l.ChooseInstance(sys)
	if err != nil {
		return nil, fault.NotFound.Errorf("%w", err)
	}
	return &d, nil
}

// read takes config and layers from a manifest.
func (c *choice) read(data []byte, kind string) error {
	switch manifest.NormalizedMIMEType(kind) {
	case manifest.DockerV2Schema1MediaType, manifest.DockerV2Schema1SignedMediaType:
		return fault.Invalid.Errorf("manifests of schema 1 are not supported")
	}
	m, err := manifest.FromBlob(data, kind)
	if err != nil {
		return fault.Invalid.Errorf("manifest: %w", err)
	}
	c.manifest = data
	if _, ok := m.(*manifest.OCI1); ok && isArtifact(m.ConfigInfo().MediaType) {
		return c.readArtifact(m)
	}
	c.config = blob{BlobInfo: m.ConfigInfo()}
	if err := c.config.Digest.Validate(); err != nil {
		return fault.Invalid.Errorf("digest of the config: %w", err)
	}
	if c.config.Digest.Algorithm() != digest.SHA256 {
		return fault.Invalid.Errorf("digest of the config is a %s, not a sha256", c.config.Digest.Algorithm())
	}
	for _, l := range m.LayerInfos() {
		c.layers = append(c.layers, blob{BlobInfo: l.BlobInfo})
	}
	return c.checkBlobs()
}

// checkBlobs refuses descriptors that nothing could be held against.
func (c *choice) checkBlobs() error {
	for i, b := range c.layers {
		if err := b.Digest.Validate(); err != nil {
			return fault.Invalid.Errorf("digest %q of layer %d: %w", b.Digest, i, err)
		}
		if b.Size < 0 {
			return fault.Invalid.Errorf("layer %d has a size of %d", i, b.Size)
		}
	}
	if c.config.Size < 0 {
		return fault.Invalid.Errorf("the config has a size of %d", c.config.Size)
	}
	return nil
}
