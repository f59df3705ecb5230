package blob

import (
	"context"
	"io"

	"github.com/crisp-cri/crisp/internal/giveway"
)

// Sizes of a ReadAhead: a few large chunks keep both sides busy with little of the layer in
// memory (2 MiB before and 2 MiB after decompression). ChunkSize is in bytes.
const (
	ChunkSize   = 256 << 10
	aheadChunks = 8
)

// A ReadAhead reads what a Verifier verifies, some chunks ahead of its own reader. One goroutine
// reads, another one verifies: so download, decompression, both digests and unpacking of one layer run
// concurrently. They pass the chunks on without copying them, and give way to calls before each.
type ReadAhead struct {
	cancel  context.CancelFunc
	read    chan []byte
	readErr error // why read was closed; read only after that
	full    chan []byte
	free    chan []byte
	err     error // why full was closed; read only after that
	ended   chan struct{}

	chunk []byte // Read returns from it
	rest  []byte // of chunk, still unread
}

// NewReadAhead starts to read from v, which is not used otherwise until Close. The goroutines stop at
// the end of v, at an error, or on Close.
func NewReadAhead(ctx context.Context, v *Verifier) *ReadAhead {
	ctx, cancel := context.WithCancel(ctx)
	a := &ReadAhead{
		cancel: cancel,
		read:   make(chan []byte, aheadChunks),
		full:   make(chan []byte, aheadChunks),
		free:   make(chan []byte, aheadChunks),
		ended:  make(chan struct{}),
	}
	for range aheadChunks {
		a.free <- nil // allocated on first use: most layers are small
	}
	go a.run(ctx, v.r)
	go a.verify(ctx, v)
	return a
}

// run fills chunks. There are no more of them than places, so that only taking a free one blocks.
func (a *ReadAhead) run(ctx context.Context, r io.Reader) {
	defer close(a.read)
	for {
		var buf []byte
		select {
		case buf = <-a.free:
		case <-ctx.Done():
			a.readErr = ctx.Err()
			return
		}
		if buf == nil {
			buf = make([]byte, ChunkSize)
		}
		giveway.Wait(ctx)
		n, err := readSome(r, buf[:ChunkSize])
		if n > 0 {
			a.read <- buf[:n]
		}
		if err != nil {
			a.readErr = err
			return
		}
	}
}

func (a *ReadAhead) verify(ctx context.Context, v *Verifier) {
	defer close(a.ended)
	defer close(a.full)
	for chunk := range a.read {
		if a.err == nil {
			giveway.Wait(ctx)
			a.err = v.see(chunk, nil)
		}
		if a.err != nil {
			a.cancel() // and wait until run has seen it
			continue
		}
		a.full <- chunk
	}
	if a.err == nil {
		a.err = v.see(nil, a.readErr)
	}
}

// readSome reads until buf is half full: passing on a chunk has a fixed cost, however little it
// holds.
func readSome(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf)/2 && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

func (a *ReadAhead) Read(p []byte) (int, error) {
	from, err := a.Ahead()
	if err != nil {
		return 0, err
	}
	n := min(len(p), len(from))
	if n > 0 && &p[0] != &from[0] {
		copy(p, from)
	}
	a.rest = from[n:]
	return n, nil
}

// Ahead returns memory with what the next call of Read returns. Read does not copy what is to go
// there, and leaves it valid until the call after that.
func (a *ReadAhead) Ahead() ([]byte, error) {
	if len(a.rest) == 0 {
		if a.chunk != nil {
			a.free <- a.chunk
			a.chunk = nil
		}
		chunk, ok := <-a.full
		if !ok {
			return nil, a.err
		}
		a.chunk, a.rest = chunk, chunk
	}
	return a.rest, nil
}

// Close stops the goroutines and waits for them.
func (a *ReadAhead) Close() error {
	a.cancel()
	<-a.ended
	return nil
}
