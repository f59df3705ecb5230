package streaming

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
)

const (
	// maxForwards bounds the connections that one session forwards at a time.
	maxForwards = 1000

	// waitingChunks bounds how much of a connection waits for its program: chunks of at
	// most 32 KiB. The kernel's buffers come on top of it.
	waitingChunks = 16
)

// stallTime is how long a program may read nothing of a connection that holds up the
// others of its session. Tests replace it.
var stallTime = 30 * time.Second

var errStalled = errors.New("the program reads nothing")

// forwards are the connections of one PortForward session. A session has no flow
// control of its own: its frames are handled in their order, and one that nobody reads
// holds up those behind it.
type forwards struct {
	log  *slog.Logger
	open atomic.Int64
}

// carry has forward serve one connection, in whose place it gets a stream that is read
// ahead, so that the others do not wait for it. What the client sends once the
// connection has ended is dropped.
func (f *forwards) carry(ctx context.Context, stream io.ReadWriteCloser, forward func(context.Context, io.ReadWriteCloser) error) error {
	defer f.open.Add(-1)
	if f.open.Add(1) > maxForwards {
		return fault.Unavailable.Errorf("%d connections are forwarded already", maxForwards)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ahead := &readAhead{ReadWriteCloser: stream, chunks: make(chan []byte, waitingChunks)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		f.read(ctx, cancel, ahead)
	}()
	err := forward(ctx, ahead)
	if errors.Is(context.Cause(ctx), errStalled) {
		f.log.WarnContext(ctx, "forwarded connection was ended, as it held up others", "err", errStalled)
	}
	cancel(nil)
	stream.Close()
	if s, ok := stream.(interface{ Reset() error }); ok {
		s.Reset() // after Close it tells the client nothing, and drops what is still to come
	}
	<-read
	return err
}

// read reads ahead until the stream has ended.
func (f *forwards) read(ctx context.Context, stall context.CancelCauseFunc, ahead *readAhead) {
	buf := make([]byte, 32<<10)
	for {
		n, err := ahead.ReadWriteCloser.Read(buf)
		if n > 0 && !f.put(ctx, ahead.chunks, bytes.Clone(buf[:n])) {
			if ctx.Err() == nil {
				stall(errStalled)
			}
			// Somebody must read until the stream is closed.
			io.Copy(io.Discard, ahead.ReadWriteCloser)
			err = ctx.Err()
		}
		if err != nil {
			ahead.err = err
			close(ahead.chunks)
			return
		}
	}
}

// put waits for room in chunks. It gives up when ctx has ended, or when no room was made
// for stallTime while there are other connections.
func (f *forwards) put(ctx context.Context, chunks chan<- []byte, chunk []byte) bool {
	select {
	case chunks <- chunk:
		return true
	default:
	}
	stalled := time.NewTicker(stallTime)
	defer stalled.Stop()
	for {
		select {
		case chunks <- chunk:
			return true
		case <-ctx.Done():
			return false
		case <-stalled.C:
			if f.open.Load() > 1 {
				return false
			}
		}
	}
}

// readAhead is a stream whose Read takes what was read ahead.
type readAhead struct {
	io.ReadWriteCloser
	chunks chan []byte
	err    error // of the stream; set before chunks is closed
	rest   []byte
}

func (r *readAhead) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		chunk, ok := <-r.chunks
		if !ok {
			return 0, r.err
		}
		r.rest = chunk
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
