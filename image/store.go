package image

import (
	"context"
	"io"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A Store is the images and root file systems below one root directory.
type Store struct {
	o Options
}

var errNotYet = fault.Internal.Errorf("image store is being built")

// Open opens the store below o.Root and makes it if it is not there.
func Open(ctx context.Context, o Options) (*Store, error) { return &Store{o: o}, nil }

// Close ends background work. Mounts stay.
func (s *Store) Close() error { return nil }

// Pull brings the image that ref names from its registry, and returns it.
func (s *Store) Pull(ctx context.Context, ref string, auth *Auth) (Image, error) {
	return Image{}, errNotYet
}

// Get returns the image that ref names: an ID with or without "sha256:", a
// unique prefix of one, a tag, a name (its tag "latest" is meant) or a digest.
// There is none: fault.NotFound; an ambiguous prefix or bad name: fault.Invalid.
func (s *Store) Get(ref string) (Image, error) { return Image{}, errNotYet }

// List returns all images.
func (s *Store) List() []Image { return nil }

// Remove removes the image that ref names, with all its tags.
func (s *Store) Remove(ctx context.Context, ref string) error { return errNotYet }

// Load brings the images of an archive in.
func (s *Store) Load(ctx context.Context, r io.Reader) ([]Image, error) { return nil, errNotYet }

// FsInfo tells what the store occupies. It walks nothing.
func (s *Store) FsInfo() FsInfo { return FsInfo{} }

// Mount mounts a read-write root file system of image id for key.
func (s *Store) Mount(ctx context.Context, key, id string) (root string, err error) {
	return "", errNotYet
}

// MountReadOnly mounts the image's files read-only for key.
func (s *Store) MountReadOnly(ctx context.Context, key, id string) (dir string, err error) {
	return "", errNotYet
}

// Unmount takes down what Mount or MountReadOnly put up for key; remove also
// deletes the writable layer and gives up the lease.
func (s *Store) Unmount(ctx context.Context, key string, remove bool) error { return errNotYet }

// Mounts lists the keys that have a lease on disk.
func (s *Store) Mounts() []string { return nil }

// Usage tells what the writable layer of key occupies.
func (s *Store) Usage(key string) (bytes, inodes uint64, err error) { return 0, 0, errNotYet }
