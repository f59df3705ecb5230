package blob

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/types"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/giveway"
)

func noise(n int) []byte {
	data := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(data)
	return data
}

// aheadOf reads r ahead, as a blob with data's digest and this size.
func aheadOf(t *testing.T, ctx context.Context, r io.Reader, data []byte, size int64) (*ReadAhead, *Verifier) {
	t.Helper()
	v, err := NewVerifier(r, Blob{BlobInfo: types.BlobInfo{Digest: digest.FromBytes(data), Size: size}})
	if err != nil {
		t.Fatal(err)
	}
	a := NewReadAhead(ctx, v)
	t.Cleanup(func() { a.Close() })
	return a, v
}

// Everything arrives, in order, however it is read and however it comes; and its end only if it is what
// the digest says.
func TestReadAhead(t *testing.T) {
	for _, size := range []int{0, 1, ChunkSize/2 - 1, ChunkSize, ChunkSize + 1, (aheadChunks+3)*ChunkSize + 17} {
		data := noise(size)
		for name, r := range map[string]io.Reader{
			"whole": bytes.NewReader(data), "halves": iotest.HalfReader(bytes.NewReader(data)), "end with data": iotest.DataErrReader(bytes.NewReader(data)),
		} {
			a, v := aheadOf(t, t.Context(), r, data, int64(size))
			if err := iotest.TestReader(a, data); err != nil {
				t.Errorf("%d bytes, %s: %v", size, name, err)
			}
			a.Close()
			if err := v.Blame(nil); err != nil {
				t.Error(err)
			}
		}
	}
}

// Nothing is read while a call is under way that a pod waits for.
func TestReadAheadGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const call = 20 * time.Millisecond
		begun, data := time.Now(), noise(3*ChunkSize)
		time.AfterFunc(call, giveway.Call())
		a, _ := aheadOf(t, t.Context(), bytes.NewReader(data), data, int64(len(data)))
		if _, err := io.Copy(io.Discard, a); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took < call {
			t.Errorf("the blob was read %v after the call began, and it ended after %v", took, call)
		}
		a.Close()
		time.Sleep(time.Second) // until nothing looks at the gate
	})
}

// What is not the blob does not end like one, and its origin gets the blame.
func TestReadAheadOfAnotherBlob(t *testing.T) {
	data, failing := noise(3*ChunkSize), errors.New("the network is away")
	other := bytes.Clone(data)
	other[len(other)-1] ^= 1
	for name, test := range map[string]struct {
		r     io.Reader
		size  int64
		want  error
		blame bool
	}{
		"another content": {bytes.NewReader(other), int64(len(data)), fault.Unavailable, true},
		"longer":          {io.MultiReader(bytes.NewReader(data), rand.NewChaCha8([32]byte{})), int64(len(data)), fault.Unavailable, true}, // without end
		"shorter":         {bytes.NewReader(data[:ChunkSize+1]), int64(len(data)), fault.Unavailable, true},
		"unknown size":    {bytes.NewReader(other), -1, fault.Invalid, true},
		"broken off":      {io.MultiReader(bytes.NewReader(data[:ChunkSize]), iotest.ErrReader(failing)), int64(len(data)), failing, false},
	} {
		a, v := aheadOf(t, t.Context(), test.r, data, test.size)
		n, err := io.Copy(io.Discard, a)
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %d bytes, then %v, want %v", name, n, err, test.want)
		}
		a.Close()
		if _, again := a.Read(make([]byte, 1)); !errors.Is(again, test.want) {
			t.Errorf("%s: read again: %v", name, again)
		}
		var damaged *damagedError
		if errors.As(v.Blame(err), &damaged) != test.blame {
			t.Errorf("%s: blames the content: %v", name, !test.blame)
		}
	}
}

// A reader that stops half-way leaves no goroutine behind, and takes no more than its chunks.
func TestReadAheadIsLeft(t *testing.T) {
	endless := &counting{r: rand.NewChaCha8([32]byte{})}
	ctx, cancel := context.WithCancel(t.Context())
	a, _ := aheadOf(t, ctx, endless, nil, -1)
	if _, err := io.ReadFull(a, make([]byte, 3*ChunkSize)); err != nil {
		t.Fatal(err)
	}
	cancel()
	a.Close() // returns only when both have ended
	if most := (3 + aheadChunks + 1) * ChunkSize; endless.n > most {
		t.Errorf("%d bytes were read, more than %d", endless.n, most)
	}
	for i := 0; ; i++ {
		if _, err := a.Read(make([]byte, ChunkSize)); errors.Is(err, context.Canceled) {
			break
		} else if err != nil || i > 4*aheadChunks {
			t.Fatalf("read after the end: %v", err)
		}
	}
}

type counting struct {
	r io.Reader
	n int
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}

// What Ahead returns is what Read reads, at the same place or at another.
func TestAhead(t *testing.T) {
	data := noise(4*ChunkSize + 5)
	a, _ := aheadOf(t, t.Context(), bytes.NewReader(data), data, int64(len(data)))
	var got []byte
	for i := 0; ; i++ {
		p, err := a.Ahead()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if p = p[:min(len(p), 1+i*40_000)]; i%3 == 0 {
			p = make([]byte, len(p))
		}
		if n, err := io.ReadFull(a, p); err != nil || n != len(p) {
			t.Fatalf("%d bytes, %v", n, err)
		}
		got = append(got, p...)
	}
	if !bytes.Equal(got, data) {
		t.Errorf("%d other bytes, want %d", len(got), len(data))
	}
}
