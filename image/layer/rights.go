package layer

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/opencontainers/go-digest"
)

// A source is where a layer came from: a blob that was seen to unpack to it, and the repository,
// with its registry, that has the blob; "" is an archive.
type source struct {
	Blob       digest.Digest
	Repository string `json:",omitempty"`
}

// registry returns the host of the repository. Which mirrors stand for it is up to the node's
// administrator.
func (s source) registry() string {
	host, _, _ := strings.Cut(s.Repository, "/")
	return host
}

// maxSources bounds the sources remembered for one layer.
const maxSources = 64

// entitle gives a stored layer only to callers who could have fetched it. An image that names
// its diff ID proves nothing: the diff IDs of private images are no secret, and an image can
// claim anything.
//
// If the same repository has served the blob before, its manifest is proof enough. If another
// repository of the same registry has, the registry only says whether the caller's has it too: a
// caller who can put it there has it. Any other registry may be the caller's own, and say anything:
// the blob is fetched and verified, but not kept.
func entitle(ctx context.Context, ls *Store, l *Layer, from blob.Origin, b blob.Blob, diffID digest.Digest) error {
	here := source{b.Digest, from.Repository()}
	if here.Repository == "" || b.Proven { // only the administrator loads archives
		return nil
	}
	known, given := ls.knows(l, here)
	if given {
		return nil
	}
	if known && from.Has(ctx, b) == nil {
		ls.learn(l, here)
		return nil
	}
	err := blob.Fetch(ctx, from, b, func() error { return verifyBlob(ctx, from, b, diffID) })
	if err != nil {
		return err
	}
	ls.learn(l, here)
	return nil
}

// verifyBlob fetches the blob of a stored layer, to verify that it is the same.
func verifyBlob(ctx context.Context, from blob.Origin, b blob.Blob, diffID digest.Digest) error {
	if b.File == "" {
		_, err := unpackBlob(ctx, from, b, diffID, func(_ context.Context, r io.Reader) (shape, error) {
			_, err := io.Copy(io.Discard, r)
			return shape{}, err
		})
		return err
	}
	body, err := from.Open(ctx, b)
	if err != nil {
		return err
	}
	defer body.Close()
	checked, err := blob.NewVerifier(body, b)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, checked)
	return checked.Blame(err)
}

// knows reports whether l was unpacked from the blob of src, or compared with it, as the registry
// of src had it; and whether its repository had it.
func (ls *Store) knows(l *Layer, src source) (known, given bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	same := func(s source) bool { return s.Blob == src.Blob && s.registry() == src.registry() }
	return slices.ContainsFunc(l.sources, same), slices.Contains(l.sources, src)
}

// learn adds a source to those of l, for the life of this process.
func (ls *Store) learn(l *Layer, src source) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.learn(src)
}

// learn is Store.learn for a caller that holds Store.mu.
func (l *Layer) learn(src source) {
	switch {
	case src.Blob == "" || slices.Contains(l.sources, src):
	case len(l.sources) < maxSources:
		l.sources = append(l.sources, src)
	default:
		l.sources = append(slices.Delete(l.sources, 1, 2), src) // the first is the one on disk
	}
}
