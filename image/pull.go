package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"golang.org/x/sys/unix"
)

// Pull brings the image that ref names from its registry, and returns it. The registry
// is asked for the manifest, with the caller's credentials, whatever is there already:
// that an image is on the node says nothing of who may have it. Only a digest that the
// registry has let the same credentials have since Open is not asked for again, if the
// policy allows the image with the signatures that it came with. An encrypted image is
// always asked for, because its key must be there each time.
//
// Pulls of one name for the same caller are joined, and cancelled when the last
// one has left. Errors: fault.NotFound if the registry does not know the
// image; fault.Invalid if the name, the credentials or the image are bad;
// fault.Unavailable if what came is damaged or the disk is full; a *PullError, if
// the registry cannot be reached, stops sending, or the policy does not allow the
// image.
func (s *Store) Pull(ctx context.Context, ref string, as registry.Caller) (Image, error) {
	sysregistriesv2.InvalidateCache() // it says what short names stand for, too
	names, err := s.registries.Names(ref)
	if err != nil {
		return Image{}, err
	}
	var access []byte
	if len(names) == 1 && registry.IsDigested(names[0]) {
		if access, err = s.registries.AccessKey(names[0], as); err != nil {
			return Image{}, fmt.Errorf("pull %s: %w", names[0], err)
		}
		if e, ok := s.catalog.Load().byName[names[0].String()]; ok && !e.record.Encrypted && s.registries.Remembers(access) {
			err := s.Allowed(ctx, as.Namespace, names[0].String(), e.ID)
			if err == nil {
				return e.Image, nil
			}
			if _, refused := errors.AsType[*registry.PullError](err); !refused {
				return Image{}, fmt.Errorf("pull %s: %w", names[0], err)
			}
			// Perhaps it was signed since.
		}
	}
	key, err := s.registries.PullKey(names, as)
	if err != nil {
		return Image{}, err
	}
	return s.pulls.join(ctx, key, func(ctx context.Context) (Image, error) {
		var first error
		for _, name := range names {
			img, err := s.pullOne(ctx, name, as.ForCandidate(ref, name))
			if err == nil {
				s.registries.Remember(access)
				return img, nil
			}
			if first == nil {
				first = err
			}
		}
		return Image{}, first
	})
}

func (s *Store) pullOne(ctx context.Context, name reference.Named, as registry.Caller) (_ Image, err error) {
	defer func() { err = registry.Failure(ctx, name.String(), err) }()
	stage.Next(ctx, "registry")
	r, err := s.registries.Dial(ctx, name, as)
	if err != nil {
		return Image{}, err
	}
	defer r.Close()
	c, err := r.Choose(ctx)
	if err != nil {
		return Image{}, err
	}
	var tags []string
	top, ok := registry.DigestOf(name)
	if !ok {
		top = c.Top
		tags = []string{name.String()}
	}
	return s.install(ctx, r, c, tags, []string{name.Name() + "@" + top.String()})
}

// install brings what was chosen, and makes it known.
func (s *Store) install(ctx context.Context, from blob.Origin, c registry.Choice, tags, digests []string) (Image, error) {
	m := record{Artifact: c.Artifact, Tags: tags, Digests: digests, Proofs: c.Proofs, Annotations: blob.CheckpointAnnotations(c.Data)}
	seen := s.seen(c, digests)
	for i := range c.Layers {
		c.Layers[i].Proven = seen != nil
	}
	if c.Artifact {
		m.Config = c.Data
		return s.unpackImage(ctx, from, c.Layers, make([]digest.Digest, len(c.Layers)), m)
	}
	if err := blob.Unlock(c.Layers, s.now().KeysDir, s.log); err != nil {
		return Image{}, err
	}
	m.Encrypted = slices.ContainsFunc(c.Layers, blob.IsEncrypted)
	// Another image's config is not for everybody who knows its digest.
	if seen != nil {
		m.Config = seen.record.Config
	} else {
		var err error
		if m.Config, err = blob.FetchConfig(ctx, from, c.Config); err != nil {
			return Image{}, err
		}
	}
	ids, err := blob.DiffIDs(m.Config, len(c.Layers))
	if err != nil {
		return Image{}, err
	}
	return s.unpackImage(ctx, from, c.Layers, ids, m)
}

// seen returns what is in the store if it came by the same manifest of the same
// repository, which digests names.
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

// unpackImage unpacks the layers of an image, brings them to the disk, and makes
// the image known. r says what else is known of it.
func (s *Store) unpackImage(ctx context.Context, from blob.Origin, blobs []blob.Blob, ids []digest.Digest, r record) (Image, error) {
	stage.Next(ctx, "layers")
	held, err := s.unpackAll(ctx, from, blobs, ids)
	stage.Next(ctx, "sync")
	if err == nil {
		err = s.commit(held)
	}
	if err == nil {
		r.Dirs, err = s.inherit(held)
	}
	switch {
	case err == nil:
		return s.put(r, held)
	case from.Repository() != "" && registry.Interrupted(err):
		return Image{}, errors.Join(err, s.kept.keep(held))
	}
	err = errors.Join(err, s.layers.releaseAll(held))
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EIO) {
		// What is kept takes up room, or may not be whole either.
		err = errors.Join(err, s.kept.dropAll())
	}
	return Image{}, err
}

// unpackAll acquires the layers that the blobs unpack to, whose content has the
// digests ids if it is a tar, and returns those
// that it holds, in order; if there is an error, perhaps not all. The largest is
// begun first: it takes the longest.
func (s *Store) unpackAll(ctx context.Context, from blob.Origin, blobs []blob.Blob, ids []digest.Digest) ([]*layer, error) {
	order := make([]int, len(blobs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(blobs[b].Size, blobs[a].Size) })

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	held := make([]*layer, len(blobs))
	slots := make(chan struct{}, s.now().MaxParallel)
	var all sync.WaitGroup
	for _, i := range order {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		all.Go(func() {
			defer func() { <-slots }()
			id := blobs[i].Identity(ids[i])
			l, mine, err := s.layers.acquire(ctx, id, source{blobs[i].Digest, from.Repository()}, func(ctx context.Context, dir string) (shape, error) {
				if blobs[i].File != "" {
					return unpackFile(ctx, from, blobs[i], dir)
				}
				return unpackBlob(ctx, from, blobs[i], ids[i], func(ctx context.Context, r io.Reader) (shape, error) { return unpack(ctx, r, dir) })
			})
			held[i] = l
			if err == nil && !mine {
				err = entitle(ctx, s.layers, l, from, blobs[i], ids[i])
			}
			if err != nil {
				cancel(fmt.Errorf("layer %s: %w", id, err)) // the first one is why
			}
		})
	}
	all.Wait()
	held = slices.DeleteFunc(held, func(l *layer) bool { return l == nil })
	return held, context.Cause(ctx)
}

// commit brings held layers to the disk and gives them their names.
func (s *Store) commit(held []*layer) error {
	var fresh []*layer
	for _, l := range held {
		if !l.committed.Load() {
			fresh = append(fresh, l)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	first := slices.MinFunc(fresh, func(a, b *layer) int { return cmp.Compare(a.losses, b.losses) })
	if err := s.layers.disk.sync(first.losses); err != nil {
		return err
	}
	for _, l := range held {
		if err := s.layers.settle(l); err != nil {
			return fmt.Errorf("commit layer %s: %w", l.diffID, err)
		}
	}
	return atomicfile.SyncDir(s.layers.dir)
}
