package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/internal/fault"
)

// An archive is a tar file on disk whose members can be read in any order. It is the origin of
// the images in it.
type archive struct {
	file    *os.File
	members map[string]member
}

// A member is the position of a file's content in the archive, or the name of the member that it
// links to.
type member struct {
	offset, size int64
	link         string
}

// spool copies an archive, compressed or not, to an unlinked file in dir: the kernel frees it
// with its last descriptor, even after a crash.
func spool(ctx context.Context, r io.Reader, dir string) (_ *os.File, err error) {
	plain, err := blob.Decompress(r)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	f, err := os.CreateTemp(dir, "archive-*")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := os.Remove(f.Name()); err != nil {
		return nil, err
	}
	// Only a writer: a file would copy to itself, by a smaller buffer.
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, &cancelled{ctx, plain}, make([]byte, blob.ChunkSize))
	return f, blob.ArchiveError(err)
}

// readArchive finds the members of the tar file f.
func readArchive(ctx context.Context, f *os.File) (*archive, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	a := &archive{file: f, members: make(map[string]member)}
	tr := tar.NewReader(f) // seeks over the content
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		hdr, err := tr.Next()
		if err == io.EOF {
			return a, nil
		}
		if err != nil {
			return nil, blob.ArchiveError(err)
		}
		name := path.Clean("/" + hdr.Name)[1:]
		switch hdr.Typeflag {
		case tar.TypeReg:
			// tar.Reader does not buffer: the content begins at the file's offset.
			at, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			a.members[name] = member{offset: at, size: hdr.Size}
		case tar.TypeLink:
			a.members[name] = member{link: path.Clean("/" + hdr.Linkname)[1:]}
		case tar.TypeSymlink: // docker save once did so for layers that occur twice
			a.members[name] = member{link: path.Join("/", path.Dir(name), hdr.Linkname)[1:]}
		}
	}
}

func (a *archive) contains(name string) bool {
	_, err := a.content(name)
	return err == nil
}

// content returns the content of a member. It may be called at any time.
func (a *archive) content(name string) (*io.SectionReader, error) {
	clean := path.Clean("/" + name)[1:]
	for range 8 {
		m, ok := a.members[clean]
		if !ok {
			break
		}
		if m.link == "" {
			return io.NewSectionReader(a.file, m.offset, m.size), nil
		}
		clean = m.link
	}
	return nil, fault.Invalid.Errorf("archive has no file %q", name)
}

// Open implements blob.Origin.
func (a *archive) Open(ctx context.Context, b blob.Blob) (io.ReadCloser, error) {
	r, err := a.content(b.Path)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(&cancelled{ctx, r}), nil
}

// Has implements blob.Origin.
func (a *archive) Has(_ context.Context, b blob.Blob) error {
	_, err := a.content(b.Path)
	return err
}

// Reject implements blob.Origin.
func (a *archive) Reject(_ context.Context, _ blob.Blob, why error) error { return why }

// Repository implements blob.Origin.
func (a *archive) Repository() string { return "" }

// json reads a member that is a JSON document into v.
func (a *archive) json(name string, v any) error {
	data, err := a.small(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fault.Invalid.Errorf("%s: %w", name, err)
	}
	return nil
}

// small reads a member that is not a layer.
func (a *archive) small(name string) ([]byte, error) {
	r, err := a.content(name)
	if err != nil {
		return nil, err
	}
	if r.Size() > blob.MaxConfig {
		return nil, fault.Invalid.Errorf("%s has %d bytes, more than %d", name, r.Size(), blob.MaxConfig)
	}
	data, err := io.ReadAll(r)
	if err == nil && int64(len(data)) != r.Size() {
		err = fault.Invalid.Errorf("archive ends early")
	}
	return data, err
}

// A cancelled reader stops when its context does.
type cancelled struct {
	ctx context.Context
	r   io.Reader
}

func (c *cancelled) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
