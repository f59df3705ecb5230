package layer

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
)

// A layer counts as usage while it is being unpacked and when it is unpacked: it takes space,
// though no image has it yet. The sum is close to the measured usage.
func TestWhatIsUnpackedIsInUse(t *testing.T) {
	_, ls := openEmpty(t)
	used := func() Usage {
		bytes, inodes := ls.Used()
		return Usage{bytes, inodes}
	}
	var grown []Usage
	l, _, err := ls.acquire(t.Context(), digest.FromString("a"), source{}, func(ctx context.Context, dir string, g *growth) (record, error) {
		r, w := io.Pipe()
		go func() {
			tw := tar.NewWriter(w)
			for _, size := range []int64{1 << 20, 10} {
				name := "file" + string(rune('0'+len(grown)))
				if err := tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: size, Mode: 0o644, Uid: os.Getuid(), Gid: os.Getgid()}); err != nil {
					t.Error(err)
				}
				if _, err := tw.Write(make([]byte, size)); err != nil {
					t.Error(err)
				}
				// archive/tar reads the next header after the file was written.
				if err := tw.WriteHeader(&tar.Header{Name: name + ".link", Typeflag: tar.TypeLink, Linkname: name}); err != nil {
					t.Error(err)
				}
				grown = append(grown, used())
			}
			w.CloseWithError(tw.Close())
		}()
		return asTree(ctx, dir, func(files string) (shape, error) { return unpack(ctx, r, files, g) })
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []Usage{{1 << 20, 1}, {1<<20 + block, 2}} {
		if i >= len(grown) || grown[i] != want {
			t.Errorf("while it is unpacked, used is %+v, then %+v is wanted", grown, want)
		}
	}
	unpacked := used()
	if unpacked.Bytes < 1<<20+block || unpacked.Inodes != 3 { // counting its directory
		t.Errorf("before it is committed, used is %+v", unpacked)
	}
	if err := ls.CommitAll(t.Context(), []*Layer{l}); err != nil {
		t.Fatal(err)
	}
	if got := used(); got != unpacked {
		t.Errorf("when it is committed, used is %+v, before %+v", got, unpacked)
	}
}

// A layer that makes the unpacker panic is an error of its caller. Nothing is left of it, and the
// next layer can be unpacked.
func TestPanicOfAnUnpackerIsAnError(t *testing.T) {
	_, ls := openEmpty(t)
	id := digest.FromString("a")
	_, _, err := ls.acquire(t.Context(), id, source{}, func(_ context.Context, dir string, _ *growth) (record, error) {
		if err := os.WriteFile(filepath.Join(dir, "part"), []byte("x"), 0o600); err != nil {
			t.Error(err)
		}
		panic("bug")
	})
	if p, ok := errors.AsType[*fault.Panic](err); !ok || p.Value != "bug" {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(ls.staging); err != nil || len(left) > 0 {
		t.Errorf("left in staging: %v (%v)", left, err)
	}
	l, mine, err := ls.acquire(t.Context(), id, source{}, func(ctx context.Context, dir string, _ *growth) (record, error) {
		return asTree(ctx, dir, func(string) (shape, error) { return shape{}, nil })
	})
	if err != nil || !mine {
		t.Fatalf("the next caller gets %v, own run %v", err, mine)
	}
	if err := ls.release(l); err != nil {
		t.Error(err)
	}
}

// Sparse files cost the reading of their holes, in whichever layer of an image they are.
func TestSparseFilesOfAnImageAreBounded(t *testing.T) {
	var claimed atomic.Int64
	first, second := &growth{claimed: &claimed}, &growth{claimed: &claimed}
	if err := first.claim(maxSparse - 1); err != nil {
		t.Error(err)
	}
	if err := second.claim(2); !errors.Is(err, fault.Invalid) {
		t.Errorf("error is %v, want one that blames the image", err)
	}
	if err := new(growth).claim(maxSparse + 1); !errors.Is(err, fault.Invalid) {
		t.Errorf("error is %v for a single file", err)
	}
	claimed.Store(maxSparse - 1)
	first.restart() // it is fetched again
	if err := first.claim(maxSparse - 1); err != nil {
		t.Errorf("when a layer starts over: %v", err)
	}
}

// A daemon that ends does not wait until the files of layers under way are deleted: the next start
// does it.
func TestClosingLeavesLayersUnderWay(t *testing.T) {
	_, ls := openEmpty(t)
	ls.end()
	failed := errors.New("the caller has left")
	_, _, err := ls.acquire(t.Context(), digest.FromString("a"), source{}, func(_ context.Context, dir string, _ *growth) (record, error) {
		return record{}, errors.Join(failed, os.Mkdir(filepath.Join(dir, "part"), 0o700))
	})
	if left, _ := os.ReadDir(ls.staging); !errors.Is(err, failed) || len(left) != 1 {
		t.Errorf("error is %v, left in staging %v", err, left)
	}
}
