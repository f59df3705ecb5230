package streaming

import (
	"io"
	"sync"
	"sync/atomic"

	"github.com/crisp-cri/crisp/internal/poke"
)

// maxAhead bounds the bytes read ahead of a stream, and maxAllAhead those of all streams that have
// more than freeAhead. The kernel's buffers come on top of it.
const (
	freeAhead   = 32 << 10
	maxAhead    = 512 << 10
	maxAllAhead = 32 << 20
)

// allAhead is how much all streams have read ahead, in bytes.
var allAhead atomic.Int64

// readAhead holds what was read of a stream before it was wanted. The streams of a connection share
// its frames: one that is not read blocks the others, the client's pings and the news of its exit.
type readAhead struct {
	mu  sync.Mutex
	buf []byte // guarded by mu
	err error  // how the stream ended, after buf; guarded by mu

	unwanted bool // what else comes is dropped; guarded by mu

	data, room chan struct{} // there may be some
}

func newReadAhead() *readAhead {
	return &readAhead{data: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// fill reads in until it ends. If there is no room it calls wait, which returns true when
// notified of some, and false to drop the rest of in.
func (r *readAhead) fill(in io.Reader, wait func(room <-chan struct{}) bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := in.Read(buf)
		for n > 0 && !r.put(buf[:n]) {
			if !wait(r.room) {
				io.Copy(io.Discard, in) // the stream must be read until it ends
				n, err = 0, io.ErrClosedPipe
			}
		}
		if err != nil {
			r.mu.Lock()
			r.err = err
			r.mu.Unlock()
			poke.Wake(r.data)
			return
		}
	}
}

// put reports whether there was room for p.
func (r *readAhead) put(p []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unwanted {
		return true
	}
	if n := len(r.buf); n >= maxAhead || n >= freeAhead && allAhead.Load() >= maxAllAhead {
		return false
	}
	r.buf = append(r.buf, p...)
	allAhead.Add(int64(len(p)))
	poke.Wake(r.data)
	return true
}

// drop drops what was read ahead and what is still to come: the stream's work has ended.
func (r *readAhead) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	allAhead.Add(-int64(len(r.buf)))
	r.buf, r.unwanted, r.err = nil, true, io.ErrClosedPipe
	poke.Wake(r.data)
}

func (r *readAhead) Read(p []byte) (int, error) {
	for {
		r.mu.Lock()
		n, err := copy(p, r.buf), r.err
		if r.buf = r.buf[n:]; len(r.buf) == 0 {
			r.buf = nil
		}
		r.mu.Unlock()
		allAhead.Add(-int64(n))
		if n > 0 {
			poke.Wake(r.room)
			return n, nil
		}
		if err != nil || len(p) == 0 {
			return 0, err
		}
		<-r.data
	}
}
