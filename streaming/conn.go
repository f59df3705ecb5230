package streaming

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
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
	once  sync.Once
	gone  chan struct{}
	taken atomic.Bool // hijacked: net/http does not close it any more
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	// A deadline that passed is net/http's way to stop its own reading.
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.leave()
	}
	return n, err
}

func (c *conn) Close() error {
	c.leave()
	return c.Conn.Close()
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
