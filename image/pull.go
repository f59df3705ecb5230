package image

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/docker/reference"
	"golang.org/x/sys/unix"
)

// maxConfig bounds what is read of an image's config.
const maxConfig = 8 << 20

// Pull brings the image that ref names from its registry, and returns it. A tag
// is always asked of the registry; a digest that is there already is not.
//
// Pulls of one name with the same auth are joined, and cancelled when the last
// caller has left. Errors: fault.NotFound if the registry does not know the
// image; fault.Invalid if the name, the credentials or the image are bad;
// fault.Unavailable if what came is damaged or the disk is full; a *PullError, if
// the registry cannot be reached, stops sending, or the policy does not allow the
// image.
func (s *Store) Pull(ctx context.Context, ref string, auth *Auth) (Image, error) {
	names, err := s.fullNames(ref)
	if err != nil {
		return Image{}, err
	}
	if len(names) == 1 {
		if _, ok := digestOf(names[0]); ok {
			if e, ok := s.catalog.Load().byName[names[0].String()]; ok {
				return e.Image, nil
			}
		}
	}
	key, err := pullKey(names, auth)
	if err != nil {
		return Image{}, err
	}
	return s.pulls.join(ctx, key, func(ctx context.Context) (Image, error) {
		var first error
		for _, name := range names {
			img, err := s.pullOne(ctx, name, auth)
			if err == nil {
				return img, nil
			}
			if first == nil {
				first = err
			}
		}
		return Image{}, first
	})
}

func pullKey(names []reference.Named, auth *Auth) (string, error) {
	secret, err := json.Marshal(auth)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %x", names, sha256.Sum256(secret)), nil
}

func (s *Store) pullOne(ctx context.Context, name reference.Named, auth *Auth) (_ Image, err error) {
	defer func() { err = pullFailure(ctx, name.String(), err) }()
	stage.Next(ctx, "registry")
	r, err := s.dial(ctx, name, auth)
	if err != nil {
		return Image{}, err
	}
	defer r.src.Close() // which closes idle connections
	p, err := s.choose(ctx, r)
	if err != nil {
		return Image{}, err
	}
	var tags []string
	top, ok := digestOf(name)
	if !ok {
		top = p.top
		tags = []string{name.String()}
	}
	byDigest := name.Name() + "@" + top.String()

	var config []byte
	if e, ok := s.catalog.Load().byID[p.config.Digest.Encoded()]; ok {
		config = e.record.Config
	} else if config, err = fetchConfig(ctx, r, p.config); err != nil {
		return Image{}, err
	}
	return s.install(ctx, r, config, p.layers, tags, []string{byDigest})
}

// fetchConfig reads and verifies an image's config.
func fetchConfig(ctx context.Context, from origin, b blob) ([]byte, error) {
	if b.Size > maxConfig {
		return nil, fault.Invalid.Errorf("config has %d bytes, more than %d", b.Size, maxConfig)
	}
	body, err := from.open(ctx, b)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	v, err := newVerifier(body, b)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(v, maxConfig+1))
	if err == nil && len(data) > maxConfig {
		err = fault.Invalid.Errorf("config has more than %d bytes", maxConfig)
	}
	return data, err
}

// install unpacks the layers of an image, brings them to the disk, and makes the
// image known.
func (s *Store) install(ctx context.Context, from origin, config []byte, blobs []blob, tags, digests []string) (Image, error) {
	ids, err := diffIDs(config, len(blobs))
	if err != nil {
		return Image{}, err
	}
	stage.Next(ctx, "layers")
	held, err := s.unpackAll(ctx, from, blobs, ids)
	stage.Next(ctx, "sync")
	if err == nil {
		err = s.commit(held)
	}
	var dirs []dirAttr
	if err == nil {
		dirs, err = s.inherit(held)
	}
	if err != nil {
		return Image{}, errors.Join(err, s.layers.releaseAll(held))
	}
	return s.put(config, held, dirs, tags, digests)
}

// diffIDs reads the digests of the n unpacked layers from an image's config.
func diffIDs(config []byte, n int) ([]digest.Digest, error) {
	var img v1.Image
	if err := json.Unmarshal(config, &img); err != nil {
		return nil, fault.Invalid.Errorf("config: %w", err)
	}
	if len(img.RootFS.DiffIDs) != n {
		return nil, fault.Invalid.Errorf("config speaks of %d layers, the manifest of %d", len(img.RootFS.DiffIDs), n)
	}
	for _, id := range img.RootFS.DiffIDs {
		if err := id.Validate(); err != nil {
			return nil, fault.Invalid.Errorf("diff ID %q: %w", id, err)
		}
	}
	return img.RootFS.DiffIDs, nil
}

// unpackAll acquires the layers ids, which the blobs unpack to, and returns those
// that it holds, in order; if there is an error, perhaps not all. The largest is
// begun first: it takes the longest.
func (s *Store) unpackAll(ctx context.Context, from origin, blobs []blob, ids []digest.Digest) ([]*layer, error) {
	order := make([]int, len(blobs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(blobs[b].Size, blobs[a].Size) })

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	held := make([]*layer, len(blobs))
	slots := make(chan struct{}, s.o.MaxParallel)
	var all sync.WaitGroup
	for _, i := range order {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		all.Go(func() {
			defer func() { <-slots }()
			l, err := s.layers.acquire(ctx, ids[i], func(ctx context.Context, dir string) (shape, error) {
				return unpackBlob(ctx, from, blobs[i], ids[i], dir)
			})
			if err != nil {
				cancel(fmt.Errorf("layer %s: %w", ids[i], err)) // the first one is why
				return
			}
			held[i] = l
		})
	}
	all.Wait()
	held = slices.DeleteFunc(held, func(l *layer) bool { return l == nil })
	return held, context.Cause(ctx)
}

// commit brings held layers to the disk and gives them their names.
func (s *Store) commit(held []*layer) error {
	if !slices.ContainsFunc(held, func(l *layer) bool { return !l.committed.Load() }) {
		return nil
	}
	if err := syncFS(s.layers.staging); err != nil {
		return err
	}
	for _, l := range held {
		if err := s.layers.settle(l); err != nil {
			return fmt.Errorf("commit layer %s: %w", l.diffID, err)
		}
	}
	return atomicfile.SyncDir(s.layers.dir)
}

// syncFS writes out the file system that dir is on: cheaper by far than an fsync
// of each file.
func syncFS(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	return os.NewSyscallError("syncfs", unix.Syncfs(fd))
}
