package streaming

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

// maxForwards bounds the connections that one session forwards at a time.
const maxForwards = 1000

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
		// An error would end the others: clients end the whole session for one.
		f.log.WarnContext(ctx, "forwarded connection was ended: the session has too many", "most", maxForwards)
		drop(stream)
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ahead, read := newReadAhead(), make(chan struct{})
	go func() {
		defer close(read)
		ahead.fill(stream, func(room <-chan struct{}) bool { return f.wait(ctx, cancel, room) })
	}()
	err := forward(ctx, forwarded{stream, ahead})
	if errors.Is(context.Cause(ctx), errStalled) {
		f.log.WarnContext(ctx, "forwarded connection was ended, as it held up others", "err", errStalled)
	}
	cancel(nil)
	drop(stream)
	<-read
	return err
}

// drop ends a stream, and what the client still sends is dropped.
func drop(stream io.Closer) {
	stream.Close()
	if s, ok := stream.(interface{ Reset() error }); ok {
		s.Reset() // after Close it tells the client nothing
	}
}

// wait waits for room, and gives up when ctx has ended. When no room is made for
// stallTime while there are other connections, it ends this one.
func (f *forwards) wait(ctx context.Context, end context.CancelCauseFunc, room <-chan struct{}) bool {
	stalled := time.NewTicker(stallTime)
	defer stalled.Stop()
	for {
		select {
		case <-room:
			return true
		case <-ctx.Done():
			return false
		case <-stalled.C:
			if f.open.Load() > 1 {
				end(errStalled)
				return false
			}
		}
	}
}

// forwarded is a stream that is read ahead.
type forwarded struct {
	io.ReadWriteCloser
	ahead *readAhead
}

func (f forwarded) Read(p []byte) (int, error) { return f.ahead.Read(p) }
