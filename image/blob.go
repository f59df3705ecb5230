package image

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/types"
)

// maxWindow bounds the memory that a zstd stream can ask for: what its own
// command allows with --long.
const maxWindow = 128 << 20

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

// A noted reader remembers the error that ended it, so that it can be told from
// one that a layer above made of it.
type noted struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (n *noted) Read(p []byte) (int, error) {
	m, err := n.r.Read(p)
	if err != nil {
		n.err = err
	}
	return m, err
}

// expand undoes the compression of r, which it finds out by the first bytes: the
// media types of real images lie. Close it before r is used otherwise.
func expand(r io.Reader) (io.ReadCloser, error) {
	from := &noted{r: r}
	b := bufio.NewReaderSize(from, 64<<10)
	magic, err := b.Peek(6)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, fault.Invalid.Errorf("decompress: %w", err)
		}
		return &expander{z, from}, nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}), isSkippable(magic):
		z, err := zstd.NewReader(b, zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, fault.Invalid.Errorf("decompress: %w", err)
		}
		return &expander{z.IOReadCloser(), from}, nil
	case bytes.HasPrefix(magic, []byte("BZh")), bytes.HasPrefix(magic, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		return nil, fault.Invalid.Errorf("compression by bzip2 or xz is not supported")
	}
	return io.NopCloser(b), nil
}

// isSkippable tells whether a zstd skippable frame begins (RFC 8878, 3.1.2): a
// zstd stream may begin with one.
func isSkippable(magic []byte) bool {
	return len(magic) >= 4 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:4], []byte{0x2a, 0x4d, 0x18})
}

// An expander blames the stream for what goes wrong in decompression, unless it
// was the reading of it.
type expander struct {
	io.ReadCloser
	from *noted
}

// Read implements io.Reader.
func (e *expander) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	switch {
	case err == nil || err == io.EOF:
		return n, err
	case e.from.err != nil && e.from.err != io.EOF:
		return n, e.from.err
	}
	return n, fault.Invalid.Errorf("decompress: %w", err)
}

// A counted reader tells the call that it reads for how much came.
type counted struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (c counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	stage.Count(c.ctx, "bytes", int64(n))
	return n, err
}

// unpackBlob fetches a layer and has it unpacked while it comes. It is verified to
// the end, compressed and not. Download, decompression and unpacking run at the same
// time.
func unpackBlob(ctx context.Context, from origin, b blob, diffID digest.Digest, unpack func(context.Context, io.Reader) (shape, error)) (_ shape, err error) {
	defer stage.Enter(ctx, "layers.unpack")()
	ctx, cancel := context.WithCancel(ctx)
	body, err := from.open(ctx, b)
	if err != nil {
		cancel()
		return shape{}, err
	}
	defer body.Close()
	checked, err := newVerifier(counted{ctx, body}, b)
	if err != nil {
		cancel()
		return shape{}, err
	}
	ahead := newReadAhead(ctx, checked)
	defer ahead.Close()
	defer cancel() // first: it ends a read from the network

	packed := io.Reader(ahead)
	if b.key != nil {
		if packed, err = b.key.decrypt(ahead); err != nil {
			return shape{}, err
		}
	}
	plain, err := expand(packed)
	if err != nil {
		return shape{}, err
	}
	defer plain.Close()
	diff, err := newVerifier(plain, blob{BlobInfo: types.BlobInfo{Digest: diffID, Size: -1}})
	if err != nil {
		return shape{}, err
	}
	files := newReadAhead(ctx, diff)
	defer files.Close()
	defer cancel()

	sh, err := unpack(ctx, files)
	if errors.Is(err, fault.Invalid) {
		// Perhaps the layer is fine, and what came is not the layer.
		files.Close()
		plain.Close()
		if _, other := io.Copy(io.Discard, ahead); other != nil {
			err = other
		}
	}
	return sh, err
}
