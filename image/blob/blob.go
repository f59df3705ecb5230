// Package blob reads the parts of an image from any source: manifests, configs and layers. It
// trusts none of them. It refuses a manifest unless each blob named there can be verified
// against a digest; it verifies each blob against its digest and size while reading it, decrypts
// it with the node's keys and decompresses it.
//
// It knows nothing of registries and archives, which are Origins, or of what happens to a layer
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
	types.BlobInfo        // an empty Digest or a negative Size is unknown
	Path           string // of the member of an archive
	Key            *Key   // decrypts it; nil: it is not encrypted
	File           string // name of the file that the layer of an artifact or a module is; "": the layer is a tar
	Module         bool   // File is a WebAssembly module, and executable: some runtimes require that
	Proven         bool   // a client that pulls it may use the unpacked layer, without asking the origin
}

// Identity returns the name of a layer in the store: its diff ID, if it is not encrypted. The
// diff ID of an encrypted layer is in the unencrypted config; so its identity includes the key,
// to require knowledge of that. The identity of a file includes its content and its name.
func (b Blob) Identity(diffID digest.Digest) digest.Digest {
	switch {
	case b.Module:
		return digest.FromString("module\x00" + b.File + "\x00" + b.Digest.String())
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
	// Has returns nil if the blob exists, without fetching it.
	Has(ctx context.Context, b Blob) error
	// Reject reports that the content of the last Open is damaged, and why. If it returns nil,
	// Open may provide the blob from another place; the error says why not, and includes why.
	Reject(ctx context.Context, b Blob, why error) error
	// Repository returns the name of the blobs' repository, without tag; "" is an archive.
	Repository() string
}

// Fetch calls read, which opens and reads b, again for each place that may have the blob, as
// long as the content is damaged (Verifier.Blame).
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

// A damagedError is an error for content that differs from the requested blob.
type damagedError struct{ error }

// Unwrap returns what is wrong with it.
func (e *damagedError) Unwrap() error { return e.error }

// A Verifier reads a blob and verifies it against its descriptor. Until it has returned io.EOF,
// its data must not be trusted.
type Verifier struct {
	r     io.Reader
	blob  Blob
	left  int64 // of Size
	check digest.Verifier
	err   error // set once reading ended
	bad   bool  // err is about the content
}

// NewVerifier returns a reader of r, the content of b. A bad digest is fault.Invalid; content
// of another size or digest is fault.Unavailable. What has no known size comes from something that
// is verified itself: another digest is fault.Invalid, and an early end is r's error.
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

func (v *Verifier) Read(p []byte) (int, error) {
	if v.err != nil {
		return 0, v.err
	}
	n, err := v.r.Read(p)
	return n, v.see(p[:n], err)
}

// see verifies what was read, and returns the error of the read, or what is wrong with the content.
func (v *Verifier) see(p []byte, err error) error {
	if v.check != nil {
		v.check.Write(p) // a hash never fails
	}
	v.left -= int64(len(p))
	v.bad = true
	switch {
	case v.blob.Size >= 0 && v.left < 0:
		err = fault.Unavailable.Errorf("blob %s is longer than its %d bytes", v.blob.Digest, v.blob.Size)
	case v.left > 0 && (err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF)):
		err = fault.Unavailable.Errorf("blob %s ends %d bytes early", v.blob.Digest, v.left)
	case err == io.EOF && v.check != nil && !v.check.Verified():
		err = fault.Unavailable.Errorf("blob %s has another digest", v.blob.Digest)
		if v.blob.Size < 0 {
			err = fault.Invalid.Errorf("its content does not have the digest %s", v.blob.Digest)
		}
	default:
		v.bad = false
	}
	v.err = err
	return err
}

// Blame returns err, with which reading the blob ended, marked for Fetch if the content is to
// blame.
func (v *Verifier) Blame(err error) error {
	if err == nil || !v.bad {
		return err
	}
	return &damagedError{err}
}
