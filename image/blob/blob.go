// Package blob reads the parts of an image, wherever they come from: manifests, configs and
// layers. It trusts none of them. A manifest is refused unless each blob that it names can be
// verified against a digest; a blob is verified against its digest and size while it is read,
// is decrypted with the node's keys and decompressed.
//
// It knows neither registries nor archives, which are Origins, nor what happens to a layer
// afterwards.
package blob

import (
	"context"
	"errors"
	"io"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/types"
)

// A Blob is a layer or a config, as its image's manifest describes it.
type Blob struct {
	types.BlobInfo        // an empty Digest or a negative Size is not known
	Path           string // of the member of an archive
	Key            *Key   // opens it; nil: it is not encrypted
	File           string // the file that a layer of an artifact is; "": it is a tar
	Proven         bool   // whoever pulls it may have the unpacked layer, so it is given without asking the origin
}

// Identity is the name of a layer in the store: its diff ID, if it is not encrypted. The diff
// ID of an encrypted layer is in the config, which is not encrypted; so whoever asks for it
// must know the key too. The identity of a file is made of its content and its name.
func (b Blob) Identity(diffID digest.Digest) digest.Digest {
	switch {
	case b.File != "":
		return digest.FromString("file\x00" + b.File + "\x00" + b.Digest.String())
	case b.Key != nil:
		return b.Key.id
	}
	return diffID
}

// An Origin is where the blobs of an image come from: a registry or an archive.
type Origin interface {
	// Open returns the content of a blob. ctx governs reading too.
	Open(ctx context.Context, b Blob) (io.ReadCloser, error)
	// Has tells, without fetching it, that a blob is there: then there is no error.
	Has(ctx context.Context, b Blob) error
	// Reject tells that the content that Open gave last is damaged, and why. If there is no
	// error, Open may give it from another place; the error is why not, and includes why.
	Reject(ctx context.Context, b Blob, why error) error
	// Repository is the name that the blobs are of, without tag; "" is an archive.
	Repository() string
}

// Fetch runs read, which opens and reads b, once more for each place that may have it, as long as
// what it reads is damaged (Verifier.Blame).
func Fetch(ctx context.Context, from Origin, b Blob, read func() error) error {
	for {
		err := read()
		if _, is := errors.AsType[*damagedError](err); !is || ctx.Err() != nil {
			return err
		}
		if err := from.Reject(ctx, b, err); err != nil {
			return err
		}
	}
}

// A damagedError is that of content that is not what was asked for.
type damagedError struct{ error }

// Unwrap returns what is wrong with it.
func (e *damagedError) Unwrap() error { return e.error }

// A Verifier reads a blob and verifies it against its descriptor. Until it has returned io.EOF,
// the data that it returned must not be trusted.
type Verifier struct {
	r     io.Reader
	blob  Blob
	left  int64 // of Size
	check digest.Verifier
	err   error // set once reading ended
	bad   bool  // err is about the content
}

// NewVerifier returns a reader of r, the content of b. A bad digest is fault.Invalid; content
// of another size or digest is fault.Unavailable.
func NewVerifier(r io.Reader, b Blob) (*Verifier, error) {
	v := &Verifier{r: r, blob: b, left: b.Size}
	if b.Digest != "" {
		if err := b.Digest.Validate(); err != nil {
			return nil, fault.Invalid.Errorf("digest %q: %w", b.Digest, err)
		}
		v.check = b.Digest.Verifier()
	}
	return v, nil
}

// Read implements io.Reader.
func (v *Verifier) Read(p []byte) (int, error) {
	if v.err != nil {
		return 0, v.err
	}
	n, err := v.r.Read(p)
	if v.check != nil {
		v.check.Write(p[:n]) // a hash takes everything
	}
	v.left -= int64(n)
	v.bad = true
	switch {
	case v.blob.Size >= 0 && v.left < 0:
		err = fault.Unavailable.Errorf("blob %s is longer than its %d bytes", v.blob.Digest, v.blob.Size)
	case err == io.EOF && v.blob.Size >= 0 && v.left > 0, errors.Is(err, io.ErrUnexpectedEOF):
		err = fault.Unavailable.Errorf("blob %s ends %d bytes early", v.blob.Digest, v.left)
	case err == io.EOF && v.check != nil && !v.check.Verified():
		err = fault.Unavailable.Errorf("blob %s has another digest", v.blob.Digest)
	default:
		v.bad = false
	}
	v.err = err
	return n, err
}

// Blame returns err, with which reading the blob has ended, marked for Fetch if the content is to
// blame.
func (v *Verifier) Blame(err error) error {
	if err == nil || !v.bad {
		return err
	}
	return &damagedError{err}
}
