package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
)

// ErrLost is found in the errors of all calls of a connection that has ended.
var ErrLost = errors.New("connection lost")

const (
	// maxCalls bounds the calls of a connection that have no answer yet: one per running process
	// that is waited for, and a few more.
	maxCalls = 4096
	// writeTime bounds how long a shim may not read.
	writeTime = 10 * time.Second
	// lastStream is the last number of a stream: numbers are odd, rise, and do not come again.
	lastStream = 1<<32 - 1
)

// A Client is a connection to a shim. Any number of goroutines may use it.
type Client struct {
	address Address
	conn    *net.UnixConn
	done    chan struct{} // closed when the connection has ended
	writing chan struct{} // a lock that can be waited for with a context

	mu    sync.Mutex
	calls map[uint32]chan response // by stream; guarded by mu
	next  uint32                   // stream; guarded by mu
	err   error                    // why the connection ended; guarded by mu
}

// Dial connects to a shim.
func Dial(ctx context.Context, a Address) (*Client, error) {
	if a.Version != 2 && a.Version != 3 {
		return nil, fault.Invalid.Errorf("%s: no version %d of the Task API is known", a, a.Version)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", a.Path)
	if err != nil {
		return nil, fault.Unavailable.Errorf("%s: %w", a, err)
	}
	c := &Client{
		address: a, conn: conn.(*net.UnixConn), done: make(chan struct{}), writing: make(chan struct{}, 1),
		calls: make(map[uint32]chan response), next: 1,
	}
	go c.read()
	return c, nil
}

// Close ends the connection; the shim keeps running.
func (c *Client) Close() { c.fail(errors.New("it was closed")) }

// Done is closed when the connection has ended: by Close, or since the shim has.
func (c *Client) Done() <-chan struct{} { return c.done }

// fail ends the connection, and all calls with the first reason.
func (c *Client) fail(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = fault.Unavailable.Errorf("%s: %w: %w", c.address, ErrLost, reason)
	c.conn.Close()
	close(c.done)
}

// read passes on the answers until the connection ends.
func (c *Client) read() {
	for {
		f, err := readFrame(c.conn, maxData)
		if errors.Is(err, io.EOF) {
			err = errors.New("the shim has closed it")
		}
		if err != nil {
			c.fail(err)
			return
		}
		c.mu.Lock()
		answer := c.calls[f.stream]
		delete(c.calls, f.stream)
		c.mu.Unlock()
		if answer == nil {
			continue // its caller has left
		}
		r, err := decodeResponse(f.data)
		if f.kind != responseFrame {
			err = fmt.Errorf("it has type %d", f.kind)
		}
		if err != nil {
			c.fail(fmt.Errorf("malformed response: %w", err))
			return
		}
		answer <- r
	}
}

// begin registers a call and sends its request.
func (c *Client) begin(ctx context.Context, data message) (stream uint32, answer chan response, err error) {
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
	case <-c.done:
		return 0, nil, c.ended()
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	}
	// The lock is retained from here: streams are sent in the order of their numbers.
	answer = make(chan response, 1)
	c.mu.Lock()
	switch {
	case c.err != nil:
		err = c.err
	case len(c.calls) == maxCalls:
		err = fault.Unavailable.Errorf("%d calls have no answer", maxCalls)
	case c.next == lastStream:
		defer c.fail(errors.New("it has had all its calls"))
		err = fault.Unavailable.Errorf("the connection has had all its calls")
	default:
		stream = c.next
		c.next += 2
		c.calls[stream] = answer
	}
	c.mu.Unlock()
	if err == nil {
		err = c.write(ctx, frame{stream, requestFrame, data})
	}
	return stream, answer, err
}

// write sends a request. If only a part of it can be sent, the connection ends: the shim does not
// read any more.
func (c *Client) write(ctx context.Context, f frame) error {
	_ = c.conn.SetWriteDeadline(time.Now().Add(writeTime))
	given := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.conn.SetWriteDeadline(time.Unix(1, 0))
		close(given)
	})
	n, err := c.conn.Write(f.bytes())
	if !stop() {
		<-given // it would set the deadline of the next request
	}
	switch {
	case err == nil:
		return nil
	case n == 0 && ctx.Err() != nil:
		c.forget(f.stream)
		return ctx.Err()
	default:
		c.fail(fmt.Errorf("it does not take requests: %w", err))
		return c.ended()
	}
}

func (c *Client) forget(stream uint32) {
	c.mu.Lock()
	delete(c.calls, stream)
	c.mu.Unlock()
}

// ended returns the error of a connection that has ended.
func (c *Client) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// call calls a method and returns its answer: of the Task API, unless it begins with another service.
func (c *Client) call(ctx context.Context, method string, m message) ([]byte, error) {
	service, name, other := strings.Cut(method, "/")
	if !other {
		service, name = fmt.Sprintf("containerd.task.v%d.Task", c.address.Version), method
	}
	r := request{
		service: service, method: name, payload: m,
		metadata: map[string]string{"containerd-namespace-ttrpc": c.address.Namespace},
	}
	if deadline, ok := ctx.Deadline(); ok {
		r.timeout = max(time.Until(deadline).Nanoseconds(), 1)
	}
	data := r.encode()
	if len(data) > maxData {
		return nil, fault.Invalid.Errorf("a request of %d bytes, at most %d", len(data), maxData)
	}
	stream, answer, err := c.begin(ctx, data)
	if err != nil {
		return nil, err
	}
	select {
	case r := <-answer:
		return r.payload, r.err()
	case <-ctx.Done():
		c.forget(stream)
		return nil, ctx.Err()
	case <-c.done:
	}
	select {
	case r := <-answer: // it came before the end
		return r.payload, r.err()
	default:
		return nil, c.ended()
	}
}

// named adds the shim and the method to an error, unless it has the shim.
func (c *Client) named(method string, err error) error {
	method = path.Base(method)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrLost):
		return fmt.Errorf("%s: %w", method, err)
	case errors.Is(err, context.DeadlineExceeded) && fault.KindOf(err) == fault.Internal:
		return fault.Unavailable.Errorf("%s: %s has no answer in time: %w", c.address, method, err)
	default:
		return fmt.Errorf("%s: %s: %w", c.address, method, err)
	}
}

// do calls a method whose answer is empty.
func (c *Client) do(ctx context.Context, method string, m message) error {
	_, err := c.call(ctx, method, m)
	return c.named(method, err)
}

// ask calls a method and decodes its answer.
func ask[T any](ctx context.Context, c *Client, method string, m message, decode func([]byte) (T, error)) (v T, err error) {
	data, err := c.call(ctx, method, m)
	if err == nil {
		if v, err = decode(data); err != nil {
			err = malformed("answer", err)
		}
	}
	if err != nil {
		var none T
		return none, c.named(method, err)
	}
	return v, nil
}
