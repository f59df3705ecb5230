package layer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/image/erofs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// A node that boots an older kernel cannot mount its EROFS layers. They are dropped with
// the images that need them, so that these are pulled again, as directories; otherwise no
// container of the images could start. A failure that does not prove the lack of EROFS
// costs no layer.
func TestKernelLacksEROFS(t *testing.T) {
	needRoot(t)
	needEROFS(t)
	mounts := probeEROFS
	t.Cleanup(func() { probeEROFS = mounts })
	root := t.TempDir()
	for _, dir := range []string{"layers", "staging"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	open := func() *Store {
		t.Helper()
		ls, err := Open(t.Context(), Options{Root: root, EROFS: true, Life: t.Context(), Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err != nil {
			t.Fatal(err)
		}
		return ls
	}
	data := archiveOf(t, "- 644 f content")
	add := func() {
		t.Helper()
		ls := open()
		l, _, err := ls.acquire(t.Context(), digest.FromBytes(data), source{}, func(ctx context.Context, dir string, g *growth) (r record, err error) {
			r.EROFS = true
			r.Shape, r.Sum, err = asImage(ctx, bytes.NewReader(data), dir, erofs.UUID{1}, g)
			return r, err
		})
		if err == nil {
			err = ls.CommitAll(t.Context(), []*Layer{l})
		}
		if err := errors.Join(err, ls.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		why    error
		layers int
		erofs  bool
	}{
		{nil, 1, true},
		{unix.EIO, 1, false},
		{unix.EMFILE, 1, false},
		{unix.ENOTBLK, 0, false}, // before Linux 6.12
		{unix.ENODEV, 0, false},  // built without EROFS
	} {
		probeEROFS = mounts
		add()
		probeEROFS = func(string) error { return c.why }
		ls := open()
		if len(ls.m) != c.layers || ls.erofs != c.erofs || !errors.Is(ls.LacksEROFS(), c.why) {
			t.Errorf("%v: %d layers, new ones are EROFS: %v, it says %v", c.why, len(ls.m), ls.erofs, ls.LacksEROFS())
		}
		if err := ls.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
