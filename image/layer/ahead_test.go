package layer

import (
	"archive/tar"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/types"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/image/erofs"
)

// A layer that is packed from where it was read, without a copy, is the same as from another reader:
// for files of any size, beside holes.
func TestPackWithoutACopy(t *testing.T) {
	r := rand.New(rand.NewPCG(35, 1))
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	sizes := []int{0, 1, 511, 512, 513, 4096, 64<<10 - 1, 64 << 10, 64<<10 + 1, blob.ChunkSize - 512, blob.ChunkSize, blob.ChunkSize + 1, 3*blob.ChunkSize + 7, 5 << 20}
	for i := range 120 {
		size := sizes[i%len(sizes)]
		if i >= 2*len(sizes) {
			size = r.IntN(100_000)
		}
		data := make([]byte, size)
		for j := range data {
			data[j] = byte(r.Uint32())
		}
		hdr := &tar.Header{Name: fmt.Sprint("file", i), Mode: 0o644, Size: int64(size)}
		if i%7 == 3 && size > 4096 { // its first half is a hole, as GNU tar writes it
			data = data[:size/1024*512]
			table := fmt.Appendf(nil, "1\n%d\n%d\n", size-len(data), len(data))
			table = append(table, make([]byte, -len(table)&511)...)
			data = append(table, data...)
			writeSparse(t, &buf, w, hdr.Name, int64(size), data)
			continue
		}
		if err := w.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	stream := buf.Bytes()
	v, err := blob.NewVerifier(bytes.NewReader(stream), blob.Blob{BlobInfo: types.BlobInfo{Digest: digest.FromBytes(stream), Size: int64(len(stream))}})
	if err != nil {
		t.Fatal(err)
	}
	ahead := blob.NewReadAhead(t.Context(), v)
	defer ahead.Close()
	dir := t.TempDir()
	one, err := os.Create(filepath.Join(dir, "one"))
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	two, err := os.Create(filepath.Join(dir, "two"))
	if err != nil {
		t.Fatal(err)
	}
	defer two.Close()
	_, want, err := pack(t.Context(), bytes.NewReader(stream), one, erofs.UUID{1}, new(growth))
	if err != nil {
		t.Fatal(err)
	}
	_, got, err := pack(t.Context(), ahead, two, erofs.UUID{1}, new(growth))
	if err != nil || got != want {
		t.Fatalf("%+v, %v, want %+v", got, err, want)
	}
	a, aerr := os.ReadFile(one.Name())
	b, berr := os.ReadFile(two.Name())
	if aerr != nil || berr != nil || !bytes.Equal(a, b) {
		t.Errorf("files of %d and %d bytes differ (%v, %v)", len(a), len(b), aerr, berr)
	}
}

// writeSparse writes an entry of PAX format 1.0, whose data begins with a table of what the file has, by
// hand: archive/tar's writer refuses the keys.
func writeSparse(t *testing.T, buf *bytes.Buffer, w *tar.Writer, name string, size int64, data []byte) {
	t.Helper()
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	var pax bytes.Buffer
	for _, kv := range [][2]string{{"GNU.sparse.major", "1"}, {"GNU.sparse.minor", "0"}, {"GNU.sparse.name", name}, {"GNU.sparse.realsize", fmt.Sprint(size)}} {
		line := fmt.Sprintf(" %s=%s\n", kv[0], kv[1])
		n := len(line) + 1
		for n != len(line)+len(fmt.Sprint(n)) {
			n++
		}
		fmt.Fprintf(&pax, "%d%s", n, line)
	}
	for _, entry := range []struct {
		kind byte
		data []byte
	}{{'x', pax.Bytes()}, {'0', data}} {
		head := make([]byte, 512)
		copy(head, name)
		copy(head[100:], "0000644\x000000000\x000000000\x00")
		copy(head[124:], fmt.Sprintf("%011o\x00%011o\x00", len(entry.data), 0))
		head[156] = entry.kind
		copy(head[257:], "ustar\x0000")
		copy(head[148:], "        ")
		sum := 0
		for _, b := range head {
			sum += int(b)
		}
		copy(head[148:], fmt.Sprintf("%06o\x00 ", sum))
		buf.Write(head)
		buf.Write(entry.data)
		buf.Write(make([]byte, -len(entry.data)&511))
	}
}
