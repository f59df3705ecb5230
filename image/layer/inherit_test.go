package layer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/testheap"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// storeOf returns a store of directory layers, lowest first, whose records edit may change.
func storeOf(t *testing.T, edit func(i int, r *record), tars ...string) (*Store, []*Layer) {
	t.Helper()
	needRoot(t)
	root, ls := openEmpty(t)
	var ids []digest.Digest
	for i, lines := range tars {
		id := digest.FromString(fmt.Sprint(i))
		dir := ls.path(id)
		r, err := asTree(t.Context(), mkdir(t, dir), func(files string) (shape, error) {
			return unpack(t.Context(), bytes.NewReader(archiveOf(t, lines)), files, new(growth))
		})
		if err != nil {
			t.Fatal(err)
		}
		r.DiffID, r.From = id, source{Blob: id, Repository: "example.org/a"}
		edit(i, &r)
		data, err := json.Marshal(r)
		if err := errors.Join(err, os.WriteFile(filepath.Join(dir, treeRecord), data, 0o600)); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	life, end := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(end)
	ls, err := Open(t.Context(), Options{Root: root, Life: life, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ls.Close() })
	layers, err := ls.RetainAll(ids)
	if err != nil {
		t.Fatal(err)
	}
	return ls, layers
}

func mkdir(t *testing.T, dir string) string {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Directories keep the attributes that a layer below gives them, with their parents; what a layer
// hides does not show through.
func TestInherit(t *testing.T) {
	ls, layers := storeOf(t, func(int, *record) {},
		"d 755 usr\nd 1777 usr/tmp\nd 700 opaque/in\nd 700 gone\nd 700 file\nd 700 same",
		"- 600 usr/tmp/x 1\n- 0 opaque/.wh..wh..opq\n- 600 opaque/in/x 1\n- 0 .wh.gone\n- 600 file 1\nd 711 same",
		"- 600 gone/x 1\n- 600 same/x 1\n- 600 file/x 1\n- 600 new/x 1")
	got, err := ls.Inherit(t.Context(), layers)
	want := []DirAttr{{"same", 0o711, 12, 34}, {"usr", 0o755, 12, 34}, {"usr/tmp", 0o1777, 12, 34}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// What an image makes Inherit do and keep is bounded, and ends with its caller.
func TestInheritIsBounded(t *testing.T) {
	var lower, upper strings.Builder
	for i := range 40 {
		deep := fmt.Sprint(i, "/", strings.Repeat(strings.Repeat("d", 200)+"/", 9), "d")
		fmt.Fprintf(&lower, "d 700 %s\n", deep)
		fmt.Fprintf(&upper, "- 600 %s/f x\n", deep)
	}
	ls, layers := storeOf(t, func(int, *record) {}, lower.String(), upper.String())
	_, err := ls.Inherit(t.Context(), layers)
	if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "paths of directories") {
		t.Errorf("error is %v, want one that blames the image for its paths", err)
	}
	c := &common{ctx: t.Context(), room: 10 * (nameCost + 200), spare: maxInherited}
	if err := ls.inherit(c, Visible(layers)); !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "in common") {
		t.Errorf("error is %v, want one that blames the image for its directories", err)
	}
	ctx, leave := context.WithCancel(t.Context())
	leave()
	if _, err := ls.Inherit(ctx, layers); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v after the caller has left", err)
	}
}

// An older crispd listed the directories without an entry in the record of the layer, in up to
// 16 MiB. Such records are not read at start, nor kept in memory, but still mean the same.
func TestRecordThatListsDirectories(t *testing.T) {
	var long []string
	for i := range 1000 {
		long = append(long, fmt.Sprintf("a/%s%d", strings.Repeat(`"],"Implied":["`, 200), i))
	}
	for _, c := range []struct {
		what            string
		opaque, implied []string
		want            []DirAttr
	}{
		{"short", []string{"o"}, nil, []DirAttr{{"tmp", 0o700, 12, 34}}},
		{"long", []string{"o"}, long, []DirAttr{{"tmp", 0o700, 12, 34}}},
		{"short, hides everything", []string{".", "o"}, nil, nil},
		{"long, hides everything", append([]string{"."}, long...), long, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			var wrote uint64
			older := func(i int, r *record) {
				if i == 0 {
					return
				}
				if !r.Shape.Marked {
					t.Error("the layer has no marks")
				}
				r.Shape = shape{Opaque: c.opaque, Implied: append(c.implied, "tmp")}
				data, err := json.Marshal(r)
				if err != nil {
					t.Fatal(err)
				}
				wrote += uint64(len(data))
			}
			ls, layers := storeOf(t, older, "d 700 tmp", "- 600 tmp/x 1")
			for _, l := range layers[1:] {
				if sh := l.record.Shape; !sh.Listed || sh.Implied != nil || len(sh.Opaque) > 1 || l.record.EROFS {
					t.Errorf("in memory there is %+v", l.record)
				}
			}
			if used, _ := ls.Used(); used < wrote {
				t.Errorf("%d bytes are used, without the records of %d", used, wrote)
			}
			begin := testheap.Allocated()
			if err := ls.findLayers(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := testheap.Allocated() - begin; got > 1<<20 {
				t.Errorf("reading the records again takes %d bytes", got)
			}
			got, err := ls.Inherit(t.Context(), layers)
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
			var buf bytes.Buffer
			if err := ls.Write(t.Context(), layers[1], &buf); err != nil || bytes.Contains(buf.Bytes(), []byte("tmp/\x00")) {
				t.Errorf("the layer is written with its directory, or not (err %v)", err)
			}
		})
	}
}
