package image

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/image/progress"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"golang.org/x/sys/unix"
)

// Pull pulls the image that ref names, and returns it. It asks the registry for the manifest, or
// for the digest of a tag, with the caller's credentials, even if the image is on the node: that
// does not entitle the caller to it. The only exception is a digest that the registry has given to
// the same credentials since Open, if the policy allows the image with the signatures that came
// with it. For an encrypted image Pull always asks for the manifest, because its key must be there
// each time.
//
// Pulls of one name for the same caller are joined, and cancelled when the last caller has left.
// Errors: fault.NotFound if the registry does not know the image; fault.Invalid if the name, the
// credentials or the image are bad; fault.Unavailable if the received content is damaged or the
// disk is full; a *PullError if the registry cannot be reached or stops sending, or the policy
// does not allow the image.
func (s *Store) Pull(ctx context.Context, ref string, as registry.Caller) (Image, error) {
	sysregistriesv2.InvalidateCache() // it also decides what short names mean
	names, err := s.registries.Names(ref)
	if err != nil {
		return Image{}, err
	}
	var access []byte
	if len(names) == 1 && registry.IsDigested(names[0]) {
		if access, err = s.registries.AccessKey(names[0], as); err != nil {
			return Image{}, fmt.Errorf("pull %s: %w", names[0], err)
		}
		if e, ok := s.catalog.Load().byName[names[0].String()]; ok && !e.needsKey(names[0].String()) && s.registries.Remembers(access) {
			err := s.Allowed(ctx, as.Namespace, names[0].String(), e.ID)
			if err == nil {
				return e.Image, nil
			}
			if _, refused := errors.AsType[*registry.PullError](err); !refused {
				return Image{}, fmt.Errorf("pull %s: %w", names[0], err)
			}
			// It may have been signed since.
		}
	}
	key, err := s.registries.PullKey(names, as)
	if err != nil {
		return Image{}, err
	}
	return s.pulls.join(ctx, journey{key, names[0].String(), as.Pod}, func(ctx context.Context, p *progress.Pull) (Image, error) {
		var failed []error
		for _, name := range names {
			img, err := s.pullOne(ctx, p, name, as.ForCandidate(ref, name))
			if err == nil {
				s.registries.Remember(access)
				return img, nil
			}
			failed = append(failed, err)
		}
		return Image{}, registry.Together(failed)
	})
}

func (s *Store) pullOne(ctx context.Context, p *progress.Pull, name reference.Named, as registry.Caller) (_ Image, err error) {
	defer func() { err = registry.Failure(ctx, name.String(), err) }()
	stage.Next(ctx, "registry")
	p.SetStage("registry")
	var img Image
	r, err := s.registries.Dial(ctx, name, as, s.present(ctx, name, &img))
	if errors.Is(err, registry.ErrPresent) {
		return img, nil
	}
	if err != nil {
		return Image{}, err
	}
	defer r.Close()
	c, err := r.Choose(ctx)
	if err != nil {
		return Image{}, err
	}
	p.From(r.Place())
	var tags []string
	top, ok := registry.DigestOf(name)
	if !ok {
		top = c.Top
		tags = []string{name.String()}
	}
	return s.install(ctx, p, r, c, tags, []string{name.Name() + "@" + top.String()})
}

// present returns a function that reports whether the image that has the tag here came with a
// manifest of this digest from the same repository, and copies it to img. It returns nil if the
// manifest must be fetched anyway: for an encrypted image, whose key must be there, and if a policy
// of the node, not only the caller's, does not allow the image: signatures may have come since.
func (s *Store) present(ctx context.Context, tag reference.Named, img *Image) func(digest.Digest) bool {
	e, ok := s.catalog.Load().byName[tag.String()]
	if !ok || registry.IsDigested(tag) || e.record.Encrypted {
		return nil
	}
	for _, namespace := range append(s.registries.Namespaces(), "") {
		if s.Allowed(ctx, namespace, tag.String(), e.ID) != nil {
			return nil
		}
	}
	return func(d digest.Digest) bool {
		now := s.catalog.Load().byName[tag.String()]
		name := tag.Name() + "@" + d.String()
		if now == nil || now.ID != e.ID || !slices.Contains(now.Digests, name) || now.needsKey(name) {
			return false
		}
		*img = now.Image
		return true
	}
}

// install fetches the chosen image and publishes it. It reports its progress to p, which may be
// nil.
func (s *Store) install(ctx context.Context, p *progress.Pull, from blob.Origin, c registry.Choice, tags, digests []string) (Image, error) {
	m := record{Artifact: c.Artifact, Tags: tags, Digests: digests, Proofs: c.Proofs, Annotations: blob.CheckpointAnnotations(c.Data)}
	if d := digest.FromBytes(c.Data); from.Repository() != "" && d != c.Top {
		m.Instances = []string{from.Repository() + "@" + d.String()}
	}
	seen := s.seen(c, digests)
	for i := range c.Layers {
		c.Layers[i].Proven = seen != nil
	}
	if c.Artifact {
		m.Config = c.Data
		return s.unpackImage(ctx, p, from, c.Layers, make([]digest.Digest, len(c.Layers)), m)
	}
	if err := blob.Unlock(c.Layers, s.now().KeysDir, s.log); err != nil {
		return Image{}, err
	}
	if m.Encrypted = slices.ContainsFunc(c.Layers, blob.IsEncrypted); m.Encrypted {
		m.Sealed = slices.Concat(digests, m.Instances)
	}
	// Knowing the digest of another image's config must not be enough to get it.
	if seen != nil {
		m.Config = seen.record.Config
	} else {
		var err error
		if m.Config, err = blob.FetchConfig(ctx, from, c.Config); err != nil {
			return Image{}, err
		}
	}
	ids, err := blob.DiffIDs(m.Config, c.Layers)
	if err != nil {
		return Image{}, err
	}
	return s.unpackImage(ctx, p, from, c.Layers, ids, m)
}

// seen returns the stored image if it came with the same manifest from the same repository,
// which digests names.
func (s *Store) seen(c registry.Choice, digests []string) *entry {
	id := c.Config.Digest
	if c.Artifact {
		id = digest.FromBytes(c.Data)
	}
	for _, name := range digests {
		if e := s.catalog.Load().byName[name]; e != nil && e.ID == id.String() {
			return e
		}
	}
	return nil
}

// unpackImage unpacks the layers of an image, syncs them to disk, and publishes the image. r is
// the rest of its record.
func (s *Store) unpackImage(ctx context.Context, p *progress.Pull, from blob.Origin, blobs []blob.Blob, ids []digest.Digest, r record) (Image, error) {
	stage.Next(ctx, "layers")
	p.SetStage("layers")
	p.Expect(blobs, ids, s.layers)
	layers, err := s.layers.AcquireAll(ctx, p.Origin(from), blobs, ids, s.now().MaxParallel)
	stage.Next(ctx, "sync")
	p.SetStage("sync")
	if err == nil {
		err = s.layers.CommitAll(ctx, layers)
	}
	if err == nil {
		r.Dirs, err = s.layers.Inherit(ctx, layers)
	}
	switch {
	case err == nil:
		return s.put(r, layers)
	case from.Repository() != "" && registry.Interrupted(err):
		return Image{}, errors.Join(err, s.layers.Keep(layers))
	}
	err = errors.Join(err, s.layers.ReleaseAll(layers))
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EIO) {
		// The layers kept take up space, or may be damaged too.
		err = errors.Join(err, s.layers.DropKept())
	}
	return Image{}, err
}

// Pulls returns the pulls under way, oldest first.
func (s *Store) Pulls() []pulls.Pull { return s.pulls.tracker.List() }

// RecentPulls returns the last pulls that have ended, latest first.
func (s *Store) RecentPulls() []pulls.Pull { return s.pulls.tracker.Recent() }
