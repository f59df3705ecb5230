package gunzip

import (
	"bytes"
	stdgzip "compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/gzip"
)

// pack compresses each text as a separate member.
func pack(t testing.TB, level int, texts ...string) []byte {
	t.Helper()
	var buf bytes.Buffer
	for _, text := range texts {
		w, err := stdgzip.NewWriterLevel(&buf, level)
		if err != nil {
			t.Fatal(err)
		}
		w.Name, w.Comment, w.Extra = "name", "comment", []byte("extra")
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return buf.Bytes()
}

// noise returns text that compresses a little, with near and far matches.
func noise(n int) string {
	r := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for b.Len() < n {
		if s := b.String(); len(s) > 100 && r.IntN(3) == 0 {
			at := len(s) - 1 - r.IntN(min(len(s)-1, 40000))
			b.WriteString(s[at:min(len(s), at+r.IntN(600))])
			continue
		}
		fmt.Fprintf(&b, "%x", r.Uint64()>>r.IntN(64))
	}
	return b.String()[:n]
}

// both calls f with ISA-L, if it is there, and with klauspost/compress, which always is.
func both(t *testing.T, f func(t *testing.T, open func(io.Reader) (io.ReadCloser, error))) {
	t.Run("go", func(t *testing.T) {
		f(t, newPortable)
	})
	t.Run("isal", func(t *testing.T) {
		if !Accelerated() {
			t.Skip("ISA-L is not there: the build has no tag isal, or libisal2 is not installed")
		}
		f(t, newFast)
	})
}

// All members are read, whatever the sizes of the reads and of the pieces that arrive.
func TestRead(t *testing.T) {
	long, levels := noise(300_000), []int{0, 1, 6, 9}
	if testing.Short() {
		levels = []int{0, 6}
	}
	both(t, func(t *testing.T, open func(io.Reader) (io.ReadCloser, error)) {
		for _, level := range levels {
			for _, texts := range [][]string{{""}, {"short"}, {long}, {"one", "", "two", long, "end"}} {
				data := pack(t, level, texts...)
				for name, r := range map[string]io.Reader{
					"whole": bytes.NewReader(data), "bytes": iotest.OneByteReader(bytes.NewReader(data)),
					"halves": iotest.HalfReader(bytes.NewReader(data)), "end with data": iotest.DataErrReader(bytes.NewReader(data)),
				} {
					z, err := open(r)
					if err != nil {
						t.Fatal(err)
					}
					if err := iotest.TestReader(z, []byte(strings.Join(texts, ""))); err != nil {
						t.Errorf("level %d, %s: %v", level, name, err)
					}
					z.Close()
				}
			}
		}
	})
}

// A stream that is cut anywhere, or followed by something else than padding, is an error.
func TestDamaged(t *testing.T) {
	data := pack(t, 6, "first", noise(500))
	both(t, func(t *testing.T, open func(io.Reader) (io.ReadCloser, error)) {
		first := len(pack(t, 6, "first"))
		for i := 1; i < len(data); i++ {
			if i == first {
				continue // the stream ends with a member
			}
			if err := readAll(open, data[:i]); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("cut at %d of %d: %v, want an unexpected end", i, len(data), err)
			}
		}
		for tail, want := range map[string]error{
			"\x00": nil, strings.Repeat("\x00", 100_000): nil, // padding
			"something else": errTrailing, "\x00\x00x": errTrailing, "\x00" + string(data): errTrailing,
			"\x1f": io.ErrUnexpectedEOF, "\x1f\x8b": io.ErrUnexpectedEOF, "\x1f is no gzip": gzip.ErrHeader,
		} {
			if err := readAll(open, append(bytes.Clone(data), tail...)); !errors.Is(err, want) {
				t.Errorf("with %.20q behind it: %v, want %v", tail, err, want)
			}
		}
		for i := range 8 { // the checksum and the length
			bad := bytes.Clone(data)
			bad[len(bad)-1-i] ^= 1
			if err := readAll(open, bad); err == nil {
				t.Errorf("byte %d from the end was changed without an error", i)
			}
		}
		failing := errors.New("the network is away")
		z, err := open(io.MultiReader(bytes.NewReader(data[:100]), iotest.ErrReader(failing)))
		if err == nil {
			defer z.Close()
			_, err = io.Copy(io.Discard, z)
		}
		if !errors.Is(err, failing) {
			t.Errorf("got %v, want the reader's error", err)
		}
	})
}

func readAll(open func(io.Reader) (io.ReadCloser, error), data []byte) error {
	z, err := open(bytes.NewReader(data))
	if err != nil {
		return err
	}
	defer z.Close()
	_, err = io.Copy(io.Discard, z)
	return err
}

// FuzzReader decompresses any stream with both libraries: ISA-L accepts everything that
// klauspost/compress does, with the same result. It also accepts incomplete Huffman codes.
func FuzzReader(f *testing.F) {
	if !Accelerated() {
		f.Skip("ISA-L is not there: the build has no tag isal, or libisal2 is not installed")
	}
	for _, level := range []int{0, 1, 6, 9} {
		f.Add(pack(f, level, "a text, a text, a text"), uint8(level))
		f.Add(pack(f, level, noise(2000), "", "b"), uint8(7))
	}
	f.Fuzz(func(t *testing.T, data []byte, piece uint8) {
		if len(data) < 2 || data[0] != 0x1f || data[1] != 0x8b {
			return // not recognized as gzip
		}
		const limit = 8 << 20
		var want bytes.Buffer
		z, wantErr := newPortable(bytes.NewReader(data))
		if wantErr == nil {
			_, wantErr = io.Copy(&want, io.LimitReader(z, limit))
		}
		fast, err := newFast(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		defer fast.Close()
		var got bytes.Buffer
		_, err = io.CopyBuffer(struct{ io.Writer }{&got}, struct{ io.Reader }{io.LimitReader(fast, limit)}, make([]byte, int(piece)*16+1))
		if wantErr != nil {
			return
		}
		if err != nil {
			t.Fatalf("ISA-L says %v, klauspost nothing", err)
		}
		if !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("ISA-L gives %d bytes, klauspost %d others", got.Len(), want.Len())
		}
	})
}

func BenchmarkReader(b *testing.B) {
	var buf bytes.Buffer
	for range 20 {
		buf.WriteString(noise(500_000))
	}
	data := pack(b, 6, buf.String())
	for name, open := range map[string]func(io.Reader) (io.ReadCloser, error){
		"go": newPortable, "used": NewReader,
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(buf.Len()))
			for b.Loop() {
				if err := readAll(open, data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
