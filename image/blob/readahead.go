package blob

import (
	"context"
	"io"
)

// Sizes of a ReadAhead: a few large chunks keep both sides busy with little of the layer in
// memory (2 MiB before and 2 MiB after decompression). ChunkSize is in bytes.
const (
	ChunkSize   = 256 << 10
	aheadChunks = 8
)

// A ReadAhead reads from another reader in its own goroutine, some chunks ahead of its own
// reader. So download, decompression and unpacking of one layer run concurrently.
type ReadAhead struct {
	cancel context.CancelFunc
	full   chan []byte
	free   chan []byte
	err    error // why full was closed; read only after that
	ended  chan struct{}

	chunk []byte // Read returns from it
	rest  []byte // of chunk, still unread
}

// NewReadAhead starts to read from r. The goroutine stops at the end of r, at an error, or on
// Close; after that r is not used any more.
func NewReadAhead(ctx context.Context, r io.Reader) *ReadAhead {
	ctx, cancel := context.WithCancel(ctx)
	a := &ReadAhead{
		cancel: cancel,
		full:   make(chan []byte, aheadChunks),
		free:   make(chan []byte, aheadChunks),
		ended:  make(chan struct{}),
	}
	for range aheadChunks {
		a.free <- nil // allocated on first use: most layers are small
	}
	go a.run(ctx, r)
	return a
}

func (a *ReadAhead) run(ctx context.Context, r io.Reader) {
	defer close(a.ended)
	defer close(a.full)
	for {
		var buf []byte
		select {
		case buf = <-a.free:
		case <-ctx.Done():
			a.err = ctx.Err()
			return
		}
		if buf == nil {
			buf = make([]byte, ChunkSize)
		}
		n, err := readSome(r, buf[:ChunkSize])
		if n > 0 {
			a.full <- buf[:n] // never blocks: there are no more chunks than places
		}
		if err != nil {
			a.err = err
			return
		}
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
	if len(a.rest) == 0 {
		if a.chunk != nil {
			a.free <- a.chunk
			a.chunk = nil
		}
		chunk, ok := <-a.full
		if !ok {
			return 0, a.err
		}
		a.chunk, a.rest = chunk, chunk
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// Close stops the goroutine and waits for it.
func (a *ReadAhead) Close() error {
	a.cancel()
	<-a.ended
	return nil
}
