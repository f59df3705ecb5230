package layer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/image/erofs"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/tree"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// The two forms of a layer, by their names in its directory, and the names of their records.
const (
	treeName, treeRecord   = "fs", "layer.json"
	imageName, imageRecord = "fs.erofs", "erofs.json"
)

// name is the name of r's file.
func (r record) name() string {
	if r.EROFS {
		return imageRecord
	}
	return treeRecord
}

// maxRecord is how much of a record is read at start, in bytes.
const maxRecord = 64 << 10

// readRecord reads the record of the layer in dir, without its lists.
func readRecord(dir string) (record, error) {
	r, err := decodeRecord(dir, maxRecord)
	if err != nil {
		return record{}, err
	}
	sh := &r.Shape
	sh.Listed, sh.Implied = len(sh.Implied) > 0, nil
	if hides := slices.Contains(sh.Opaque, "."); hides {
		sh.Opaque = []string{"."}
	} else {
		sh.Opaque = nil
	}
	return r, nil
}

// listed returns the shape of l with the list that its record may have.
func (ls *Store) listed(l *Layer) (shape, error) {
	sh := l.record.Shape
	if !sh.Listed {
		return sh, nil
	}
	r, err := decodeRecord(ls.path(l.DiffID), math.MaxInt64)
	sh.Implied = r.Shape.Implied
	return sh, err
}

// decodeRecord decodes the record in dir. If it has more than the given bytes, its lists are cut
// off, and something is left of the one that is not empty.
func decodeRecord(dir string, most int64) (r record, err error) {
	data, size, err := atomicfile.ReadFirst(filepath.Join(dir, treeRecord), most)
	if errors.Is(err, fs.ErrNotExist) {
		r.EROFS = true
		data, size, err = atomicfile.ReadFirst(filepath.Join(dir, imageRecord), most)
	}
	if err != nil {
		return record{}, err
	}
	if size > most {
		data = cutLists(data)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, fault.Invalid.Errorf("record: %w", err)
	}
	r.size = size
	return r, nil
}

// cutLists completes the beginning of a record that is too long. Only the lists of its shape can be
// so long, and what comes after them is not needed: the registry is asked again for what the layer
// came from. A quote within a path has a backslash, so paths cannot pass for what is searched.
func cutLists(head []byte) []byte {
	before, lists, ok := bytes.Cut(head, []byte(`"Opaque":[`))
	if !ok {
		before, _, _ = bytes.Cut(head, []byte(`"Implied":[`))
	}
	rest := `"Implied":["."]}}`
	if bytes.Contains(lists, []byte(`"."`)) {
		rest = `"Opaque":["."],` + rest
	}
	return append(slices.Clone(before), rest...)
}

// Files returns where a committed layer's files are, which are read-only and shared: a directory
// or, if isImage is set, an EROFS file system in a file, to be mounted.
func (ls *Store) Files(l *Layer) (path string, isImage bool) {
	if l.record.EROFS {
		return filepath.Join(ls.path(l.DiffID), imageName), true
	}
	return filepath.Join(ls.path(l.DiffID), treeName), false
}

// open returns a descriptor of the root directory of a committed layer.
func (ls *Store) open(l *Layer) (fd int, err error) {
	path, isImage := ls.Files(l)
	if isImage {
		return erofs.Mount(path, "")
	}
	fd, err = unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// unpacker returns the function that makes the layer of b. It starts over from another place if
// what was received is damaged. Claimed are the sizes of the image's sparse files so far.
func (ls *Store) unpacker(from blob.Origin, b blob.Blob, id digest.Digest, claimed *atomic.Int64) fillFunc {
	return func(ctx context.Context, dir string, g *growth) (r record, err error) {
		g.claimed = claimed
		again := false
		err = blob.Fetch(ctx, from, b, func() error {
			if again {
				if err := clearFiles(ctx, dir); err != nil {
					return err
				}
				g.restart()
			}
			again = true
			r, err = ls.make(ctx, from, b, id, dir, g)
			return err
		})
		return r, err
	}
}

// make unpacks b to a layer in dir.
func (ls *Store) make(ctx context.Context, from blob.Origin, b blob.Blob, id digest.Digest, dir string, g *growth) (r record, err error) {
	switch {
	case b.File != "":
		return asTree(ctx, dir, func(files string) (shape, error) { return unpackFile(ctx, from, b, files, g) })
	case ls.erofs:
		r.EROFS = true
		r.Shape, err = unpackBlob(ctx, from, b, id, func(ctx context.Context, stream io.Reader) (sh shape, err error) {
			sh, r.Sum, err = asImage(ctx, stream, dir, uuidOf(b.Identity(id)), g)
			return sh, err
		})
		if !errors.Is(err, errManyFiles) && !errors.Is(err, errNoRoom) {
			return r, err
		}
		// As a directory it need not fit into memory.
		if err := os.Remove(filepath.Join(dir, imageName)); err != nil {
			return record{}, err
		}
		g.restart()
	}
	return asTree(ctx, dir, func(files string) (shape, error) {
		return unpackBlob(ctx, from, b, id, func(ctx context.Context, stream io.Reader) (shape, error) {
			return unpackInto(ctx, stream, files, unpacking{squash: ls.squash}, g)
		})
	})
}

// clearFiles removes the files of an incomplete layer, of either form.
func clearFiles(ctx context.Context, dir string) error {
	if err := os.Remove(filepath.Join(dir, imageName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return tree.Remove(ctx, filepath.Join(dir, treeName))
}

// asTree has fill make the files of a layer in a directory, and measures them.
func asTree(ctx context.Context, dir string, fill func(files string) (shape, error)) (r record, err error) {
	files := filepath.Join(dir, treeName)
	if err := os.Mkdir(files, 0o755); err != nil {
		return record{}, err
	}
	if err := os.Chmod(files, 0o755); err != nil { // whatever the umask
		return record{}, err
	}
	if r.Shape, err = fill(files); err != nil {
		return record{}, err
	}
	r.Sum, err = measure(ctx, files)
	return r, err
}

// uuidOf returns the UUID of a layer's file system, which is the same on every machine.
func uuidOf(id digest.Digest) (uuid erofs.UUID) {
	sum := sha256.Sum256([]byte(id))
	copy(uuid[:], sum[:])
	return uuid
}

// asImage writes the tar stream of a layer as an EROFS file system.
func asImage(ctx context.Context, stream io.Reader, dir string, id erofs.UUID, g *growth) (_ shape, _ sum, err error) {
	f, err := os.OpenFile(filepath.Join(dir, imageName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return shape{}, sum{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sh, written, err := pack(ctx, stream, f, id, g)
	if err != nil {
		return shape{}, sum{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return shape{}, sum{}, os.NewSyscallError("fstat", err)
	}
	return sh, sum{Bytes: written.Bytes, Disk: uint64(st.Blocks) * 512, Inodes: 1, Digest: written.Digest}, nil
}

// check returns the digest of a committed layer's metadata as it is on disk now.
func (ls *Store) check(ctx context.Context, l *Layer) (string, error) {
	path, isImage := ls.Files(l)
	if !isImage {
		s, err := measure(ctx, path)
		return s.Digest, err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return erofs.Digest(ctx, f)
}
