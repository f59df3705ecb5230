package streaming

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// listener hands out connections that know when they are gone.
type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, gone: make(chan struct{})}, nil
}

// conn is a connection whose gone is closed when either side has closed it.
// After the upgrade somebody always reads from it (both protocols need that for
// their control frames), so a client that goes away is noticed at once, even if
// the command at our end neither reads nor writes.
type conn struct {
	net.Conn
	once   sync.Once
	gone   chan struct{}
	taken  atomic.Bool // hijacked: net/http does not close it any more
	closed atomic.Bool // by us, after it was taken

	reading sync.Mutex // held while somebody reads
}

func (c *conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.closed.Load() {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(p)
	// A deadline that passed is net/http's way to stop its own reading.
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.leave()
	}
	return n, err
}

// lingerTime bounds for how long a client may take to notice the end of what it was
// sent.
const lingerTime = time.Minute

// Close ends the connection for us. What was written is still delivered, the end of a
// stream and an exit code perhaps: a close(2) with bytes unread, which a client that
// goes on sending always has underway, would throw it away (RFC 1122, 4.2.2.13: "it
// SHOULD send a RST to show that data was lost"). So only our half is closed, and the
// rest is read until the client closes its own.
func (c *conn) Close() error {
	c.leave()
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || !c.taken.Load() {
		return c.Conn.Close()
	}
	if c.closed.Swap(true) {
		return nil
	}
	if err := half.CloseWrite(); err != nil {
		return errors.Join(err, c.Conn.Close())
	}
	c.Conn.SetReadDeadline(time.Now()) // who reads now is to stop
	go func() {
		defer c.Conn.Close()
		c.reading.Lock()
		defer c.reading.Unlock()
		c.Conn.SetReadDeadline(time.Now().Add(lingerTime))
		io.Copy(io.Discard, c.Conn)
	}()
	return nil
}

func (c *conn) leave() { c.once.Do(func() { close(c.gone) }) }

type connKey struct{}

// connContext makes the context of a connection's requests end with it, and a
// connection that was taken over from net/http end with the server.
func connContext(ctx context.Context, nc net.Conn) context.Context {
	c, ok := nc.(*conn)
	if !ok {
		return ctx
	}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, connKey{}, c))
	go func() {
		defer cancel()
		select {
		case <-c.gone:
		case <-ctx.Done():
			c.Close()
		}
	}()
	return ctx
}

func connState(nc net.Conn, state http.ConnState) {
	if c, ok := nc.(*conn); ok && state == http.StateHijacked {
		c.taken.Store(true)
	}
}

// closeTaken closes the connection of a request's context if it was taken over.
func closeTaken(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*conn); ok && c.taken.Load() {
		c.Close()
	}
}
