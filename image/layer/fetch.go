package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/types"
)

// A counted reader counts the bytes it reads in the stage of its call.
type counted struct {
	ctx context.Context
	r   io.Reader
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	stage.Count(c.ctx, "bytes", int64(n))
	return n, err
}

// unpackBlob fetches a layer and unpacks it while it arrives, verifying it to the end, both
// compressed and uncompressed. Download, decompression, the two digests and unpacking run concurrently.
func unpackBlob(ctx context.Context, from blob.Origin, b blob.Blob, diffID digest.Digest, consume func(context.Context, io.Reader) (shape, error)) (_ shape, err error) {
	defer stage.Enter(ctx, "layers.unpack")()
	ctx, cancel := context.WithCancel(ctx)
	body, err := from.Open(ctx, b)
	if err != nil {
		cancel()
		return shape{}, err
	}
	defer body.Close()
	checked, err := blob.NewVerifier(counted{ctx, body}, b)
	if err != nil {
		cancel()
		return shape{}, err
	}
	defer func() { err = checked.Blame(err) }() // once the reading has ended
	ahead := blob.NewReadAhead(ctx, checked)
	defer ahead.Close()
	defer cancel() // first: it ends a read from the network

	packed := io.Reader(ahead)
	if b.Key != nil {
		if packed, err = b.Key.Decrypt(ahead); err != nil {
			return shape{}, err
		}
	}
	plain, err := blob.Decompress(packed)
	if err != nil {
		return shape{}, err
	}
	defer plain.Close()
	diff, err := blob.NewVerifier(plain, blob.Blob{BlobInfo: types.BlobInfo{Digest: diffID, Size: -1}})
	if err != nil {
		return shape{}, err
	}
	files := blob.NewReadAhead(ctx, diff)
	defer files.Close()
	defer cancel()

	sh, err := consume(ctx, files)
	if errors.Is(err, fault.Invalid) {
		// The layer may be fine, and the received data not the layer.
		files.Close()
		plain.Close()
		if _, other := io.Copy(io.Discard, ahead); other != nil {
			return sh, other
		}
		err = fmt.Errorf("blob %s: %w", b.Digest, err)
	}
	return sh, err
}

// unpackFile fetches a layer that is a single file, and stores it in dir under its name.
func unpackFile(ctx context.Context, from blob.Origin, b blob.Blob, dir string, g *growth) (_ shape, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	body, err := from.Open(ctx, b)
	if err != nil {
		return shape{}, err
	}
	defer body.Close()
	checked, err := blob.NewVerifier(body, b)
	if err != nil {
		return shape{}, err
	}
	defer func() { err = checked.Blame(err) }()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return shape{}, err
	}
	defer root.Close()
	if err := root.MkdirAll(filepath.Dir(b.File), 0o755); err != nil {
		return shape{}, err
	}
	mode := os.FileMode(0o644)
	if b.Module {
		mode = 0o755
	}
	f, err := root.OpenFile(b.File, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return shape{}, err
	}
	defer f.Close()
	if err := f.Chmod(mode); err != nil { // whatever the umask
		return shape{}, err
	}
	g.made()
	if _, err := io.CopyBuffer(growing{f, g}, onlyReader{checked}, make([]byte, blob.ChunkSize)); err != nil {
		return shape{}, fmt.Errorf("file %q: %w", b.File, err)
	}
	return shape{}, f.Close()
}
