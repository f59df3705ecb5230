package image

import (
	"context"
	"errors"
	"io"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/types"
)

// A blob is a layer or a config, as its image's manifest describes it.
type blob struct {
	types.BlobInfo           // an empty Digest or a negative Size is not known
	path           string    // of the member of an archive
	key            *layerKey // opens it; nil: it is not encrypted
	file           string    // the file that a layer of an artifact is; "": it is a tar
	proven         bool      // who pulls it may have what it unpacks to, see entitle
}

// identity is what a layer goes by in the store: its diff ID, if whoever has the
// unpacked layer may have it. That of an encrypted layer is told by the config,
// which is not encrypted; the key must be known too. A file is what it is and its
// name.
func (b blob) identity(diffID digest.Digest) digest.Digest {
	switch {
	case b.file != "":
		return digest.FromString("file\x00" + b.file + "\x00" + b.Digest.String())
	case b.key != nil:
		return b.key.id
	}
	return diffID
}

// An origin is where the blobs of an image come from: a registry or an archive.
type origin interface {
	// open returns the content of a blob. ctx governs reading too.
	open(ctx context.Context, b blob) (io.ReadCloser, error)
	// has tells, without fetching it, that a blob is there: then there is no error.
	has(ctx context.Context, b blob) error
	// repository is the name that the blobs are of, without tag; "" is an archive.
	repository() string
}

// A verifier reads a blob and holds it against its descriptor. Until it has
// returned io.EOF, what it returned is not to be believed.
type verifier struct {
	r     io.Reader
	blob  blob
	left  int64 // of Size
	check digest.Verifier
	err   error // set once reading ended
}

func newVerifier(r io.Reader, b blob) (*verifier, error) {
	v := &verifier{r: r, blob: b, left: b.Size}
	if b.Digest != "" {
		if err := b.Digest.Validate(); err != nil {
			return nil, fault.Invalid.Errorf("digest %q: %w", b.Digest, err)
		}
		v.check = b.Digest.Verifier()
	}
	return v, nil
}

// Read implements io.Reader.
func (v *verifier) Read(p []byte) (int, error) {
	if v.err != nil {
		return 0, v.err
	}
	n, err := v.r.Read(p)
	if v.check != nil {
		v.check.Write(p[:n]) // a hash takes everything
	}
	v.left -= int64(n)
	switch {
	case v.blob.Size >= 0 && v.left < 0:
		err = fault.Unavailable.Errorf("blob %s is longer than its %d bytes", v.blob.Digest, v.blob.Size)
	case err == io.EOF && v.blob.Size >= 0 && v.left > 0, errors.Is(err, io.ErrUnexpectedEOF):
		err = fault.Unavailable.Errorf("blob %s ends %d bytes early", v.blob.Digest, v.left)
	case err == io.EOF && v.check != nil && !v.check.Verified():
		err = fault.Unavailable.Errorf("blob %s has another digest", v.blob.Digest)
	}
	v.err = err
	return n, err
}
