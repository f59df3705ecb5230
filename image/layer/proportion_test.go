package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/image/erofs"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/testheap"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// What a layer may take, by its uncompressed size. A directory without an entry takes two bytes of a
// path.
var (
	maxAllocated = testheap.Bound{Base: 2 << 20, PerByte: 800}
	maxRecorded  = testheap.Bound{Base: 1 << 10}
	maxUncounted = testheap.Bound{Base: 1 << 20} // held besides what a room counts: buffers
	// A link in a path may lead through 2000 names, forty times.
	maxLookedUp = testheap.Bound{Base: 1 << 17, PerByte: 200}
	maxOpened   = testheap.Bound{Base: 1 << 10, PerByte: 3}
	// Of three layers with the same directories.
	maxInheriting = testheap.Bound{Base: 1 << 20, PerByte: 120}
	maxVisited    = testheap.Bound{Base: 1 << 14, PerByte: nameCost + 1}
)

// inProportion unpacks a layer, and fails if it takes more memory or steps than a layer of its size
// may: while it is unpacked, when it is, or when an image has it three times.
func inProportion(t testing.TB, data []byte) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "fs.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := erofs.NewWriter(f)
	if err != nil {
		t.Fatal(err)
	}
	begin := testheap.Allocated()
	p := &packer{names: newNames(newBudget(maxNames).room(maxNames)), w: w, buf: make([]byte, blob.ChunkSize), growth: new(growth)}
	enter(t, data, p.entry)
	maxLookedUp.Check(t, "names looked up", uint64(p.names.steps), len(data))
	counts(t, &p, p.names.room, begin)

	begin = testheap.Allocated()
	if err := errors.Join(f.Truncate(0), seek(f)); err != nil {
		t.Fatal(err)
	}
	sh, _, err := pack(t.Context(), bytes.NewReader(data), f, erofs.UUID{1}, new(growth))
	maxAllocated.Check(t, "bytes allocated for an EROFS file", testheap.Allocated()-begin, len(data))
	if err == nil {
		records(t, record{Shape: sh, EROFS: true}, len(data))
	}

	dir := t.TempDir()
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	begin = testheap.Allocated()
	u := newUnpacker(t.Context(), root, dir)
	enter(t, data, u.entry)
	maxOpened.Check(t, "directories opened", uint64(u.dirs.opens), len(data))
	room, sh := u.dirs.room, shape{Marked: u.dirs.marks > 0}
	u.dirs.close()
	maxAllocated.Check(t, "bytes allocated for directories", testheap.Allocated()-begin, len(data))
	counts(t, &u, room, begin)
	records(t, record{Shape: sh}, len(data))
	threeTimes(t, dir, sh, len(data))
}

func seek(f *os.File) error {
	_, err := f.Seek(0, io.SeekStart)
	return err
}

// enter gives the entries of a layer to entry, until one is refused.
func enter(t testing.TB, data []byte, entry func(context.Context, *tar.Header, io.Reader) error) {
	tr := tar.NewReader(bytes.NewReader(data))
	_ = eachEntry(t.Context(), tr, func(hdr *tar.Header) error { return entry(t.Context(), hdr, tr) })
}

// counts fails if what v keeps is more than the room counts, by more than a quarter. It is part of
// what was allocated since begin.
func counts[T any](t testing.TB, v *T, r *room, begin uint64) {
	t.Helper()
	if testheap.Allocated()-begin <= maxUncounted.Base {
		return
	}
	kept, counted := testheap.Kept(v), uint64(r.used)*5/4
	maxUncounted.Check(t, "bytes kept without being counted", kept-min(kept, counted), 0)
}

// threeTimes makes an image of three layers, all with the files in dir.
func threeTimes(t testing.TB, dir string, sh shape, size int) {
	t.Helper()
	ls := &Store{dir: t.TempDir()}
	var layers []*Layer
	for i := range 3 {
		l := &Layer{DiffID: digest.FromString(fmt.Sprint(i)), record: record{Shape: sh}}
		at := ls.path(l.DiffID)
		if err := errors.Join(os.Mkdir(at, 0o700), os.Symlink(dir, filepath.Join(at, treeName))); err != nil {
			t.Fatal(err)
		}
		layers = append(layers, l)
	}
	begin := testheap.Allocated()
	c := &common{ctx: t.Context(), room: maxCommon, spare: maxInherited}
	if err := ls.inherit(c, layers); err != nil && !errors.Is(err, fault.Invalid) {
		t.Errorf("error is %v, which does not blame the image", err)
	}
	maxInheriting.Check(t, "bytes allocated for an image", testheap.Allocated()-begin, 3*size)
	maxVisited.Check(t, "bytes of names looked up for an image", uint64(maxCommon-c.room), 3*size)
}

// records fails if a record, which is read at each start and stays in memory, is long.
func records(t testing.TB, r record, size int) {
	t.Helper()
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	maxRecorded.Check(t, "bytes in the record", uint64(len(data)), size)
}

// chains are files in directories without an entry, as deep as can be, in archiveOf's lines.
func chains(n int) string {
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, "- 600 %d/%sf x\n", i, strings.Repeat("d/", 1880))
	}
	return lines.String()
}

// padded are entries of a kind whose headers are mostly of no use. Their names are too long for the
// old form of a header, so they are in the same string.
func padded(kind string) string {
	var lines strings.Builder
	for i := range 8 {
		fmt.Fprintf(&lines, "%s 755 %0120d;trusted.x=%s\n", kind, i, strings.Repeat("x", 256<<10))
	}
	return lines.String()
}

// A layer takes no more memory than its size explains, whatever its names are: an image of 10 KB could
// fill a node's memory for good, and one of 2 MB while it was pulled.
func TestLayerTakesInProportion(t *testing.T) {
	needRoot(t)
	var small strings.Builder
	for i := range 300 {
		fmt.Fprintf(&small, "d 755 d%d/e\n- 644 d%d/f x\nl 777 d%d/l f\n- 644 d%d/g;user.a=b x\n- 0 d%d/.wh.h\nh 0 d%d/i d%d/f\n- 644 i%d/f x\n", i, i, i, i, i, i, i, i)
	}
	for what, lines := range map[string]string{
		"deep directories without entries":  chains(4),
		"files with long headers":           padded("-"),
		"directories with long headers":     padded("d"),
		"pipes with long headers":           padded("p"),
		"many small files of each kind":     small.String(),
		"whiteouts and an opaque directory": all,
	} {
		t.Run(what, func(t *testing.T) { inProportion(t, archiveOf(t, lines)) })
	}
}
