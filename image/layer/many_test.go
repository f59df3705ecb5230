package layer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/opencontainers/go-digest"
)

// An origin has one blob, and counts its fetches.
type origin struct {
	data   []byte
	opened int
}

func (o *origin) Open(context.Context, blob.Blob) (io.ReadCloser, error) {
	o.opened++
	return io.NopCloser(bytes.NewReader(o.data)), nil
}

func (o *origin) Has(context.Context, blob.Blob) error                   { return nil }
func (o *origin) Repository() string                                     { return "" }
func (o *origin) Reject(_ context.Context, _ blob.Blob, why error) error { return why }

// A layer with more files than memory allows is kept as directories instead of EROFS.
func TestLayerOfManyFiles(t *testing.T) {
	needRoot(t)
	room := packRoom
	t.Cleanup(func() { packRoom = room })
	var lines strings.Builder
	for i := range 200 {
		fmt.Fprintf(&lines, "- 644 f%d x\n", i)
	}
	o := &origin{data: archiveOf(t, lines.String())}
	var b blob.Blob
	b.Digest, b.Size = digest.FromBytes(o.data), int64(len(o.data))
	for _, c := range []struct {
		room   int
		erofs  bool
		opened int
	}{{room, true, 1}, {100 * nodeCost, false, 2}} {
		packRoom, o.opened = c.room, 0
		_, ls := openEmpty(t)
		ls.erofs = true
		dir, g := t.TempDir(), new(growth)
		r, err := ls.unpacker(o, b, b.Digest, nil)(t.Context(), dir, g)
		if err != nil {
			t.Fatal(err)
		}
		if r.EROFS != c.erofs || o.opened != c.opened {
			t.Errorf("with room for %d bytes: EROFS %v, fetched %d times", c.room, r.EROFS, o.opened)
		}
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		if want := map[bool]string{true: imageName, false: treeName}[c.erofs]; len(files) != 1 || filepath.Base(files[0]) != want {
			t.Errorf("with room for %d bytes: it is %v", c.room, files)
		}
		if got := g.usage().Inodes; got < 200 || got > 210 {
			t.Errorf("with room for %d bytes: %d inodes were counted", c.room, got)
		}
	}
}
