package checkpoint

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
)

// PlainDiff turns RootFSDiff in a checkpoint's directory into a plain tar archive of files, and
// returns the paths to remove before writing them. containerd stores a layer there: compressed,
// and with whiteouts for removed files. Others store DeletedFiles and plain archives, which are
// left as they are. The files of a layer may have max bytes in total; the layer is untrusted.
func PlainDiff(ctx context.Context, dir string, max int64) (removed []string, err error) {
	in, err := OpenFile(dir, RootFSDiff)
	if errors.Is(err, fault.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer in.Close()
	magic := make([]byte, 4)
	if _, err := io.ReadFull(in, magic); err != nil || !compressed(magic) {
		return nil, nil // not a layer; its reader reports what is wrong with it, if anything
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	layer, err := decompress(in)
	if err != nil {
		return nil, err
	}
	defer layer.Close()
	file := filepath.Join(dir, RootFSDiff)
	out, err := os.OpenFile(file+".plain", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	removed, err = plainLayer(ctx, layer, out, max)
	err = errors.Join(err, out.Close())
	if err == nil {
		err = os.Rename(out.Name(), file)
	}
	return removed, err
}

// Names in a layer that mark removed files: "Whiteouts" of the OCI image
// specification, layer.md.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

func plainLayer(ctx context.Context, layer io.Reader, out io.Writer, max int64) (removed []string, err error) {
	tr, tw := tar.NewReader(interruptible{ctx, layer}), tar.NewWriter(out)
	err = eachEntry(ctx, tr, RootFSDiff+" of the checkpoint", func(hdr *tar.Header) error {
		parent, base := path.Split(path.Clean("/" + hdr.Name))
		switch {
		case base == opaque:
			removed = append(removed, parent)
			return nil
		case strings.HasPrefix(base, whiteout):
			removed = append(removed, path.Join(parent, strings.TrimPrefix(base, whiteout)))
			return nil
		}
		if max -= hdr.Size; max < 0 {
			return fault.Invalid.Errorf("%s of the checkpoint has more in it than there is room for", RootFSDiff)
		}
		err := tw.WriteHeader(hdr)
		if err == nil {
			_, err = io.Copy(tw, tr)
		}
		if err != nil && !isOurs(err) {
			err = fault.Invalid.Errorf("%q in %s of the checkpoint: %w", hdr.Name, RootFSDiff, err)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return removed, tw.Close()
}
