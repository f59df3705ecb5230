package streaming

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// listener accepts connections that notice when they are closed.
type listener struct {
	net.Listener
	lobby *lobby
}

func (l listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: nc, gone: make(chan struct{}), lobby: l.lobby}
	l.lobby.enter(c)
	return c, nil
}

// maxUnknown is how many connections may be open that have shown no token.
const maxUnknown = 1000

// A lobby has the connections that have shown no token yet, in the order of their arrival. Any user
// of the node can connect, and must not use up crispd's descriptors.
type lobby struct {
	mu      sync.Mutex
	unknown []*conn // guarded by mu
}

// enter adds c. If there are too many, the first one has to go: who has a token shows it at once.
func (l *lobby) enter(c *conn) {
	l.mu.Lock()
	l.unknown = append(l.unknown, c)
	var first *conn
	if len(l.unknown) > maxUnknown {
		first = l.unknown[0]
	}
	l.mu.Unlock()
	if first != nil {
		first.Close()
	}
}

// leave removes c, if it is there.
func (l *lobby) leave(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unknown = slices.DeleteFunc(l.unknown, func(other *conn) bool { return other == c })
}

// conn is a connection. Its channel gone is closed once either side has closed it. After the
// upgrade it is always being read (both protocols need that for their control frames), so a client
// that disconnects is noticed at once, even if the command at our end neither reads nor writes.
type conn struct {
	net.Conn
	once   sync.Once
	gone   chan struct{}
	lobby  *lobby
	taken  atomic.Bool // hijacked: net/http does not close it any more
	closed atomic.Bool // by us, after it was taken

	reading sync.Mutex // held during a read
}

func (c *conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.closed.Load() {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(p)
	// net/http stops its own reading with a deadline in the past.
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.leave()
	}
	return n, err
}

// lingerTime bounds how long a client may take to notice the end of its stream.
const lingerTime = time.Minute

// Close closes our end of the connection. Data already written is still delivered, perhaps the
// end of a stream and an exit code: a close(2) with unread data, which a client that keeps
// sending always has in flight, would discard it (RFC 1122, 4.2.2.13: "it SHOULD send a RST to
// show that data was lost"). So Close closes only the sending direction, and reads the rest
// until the client closes its end.
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
	c.Conn.SetReadDeadline(time.Now()) // interrupts a Read that is under way
	go func() {
		defer c.Conn.Close()
		c.reading.Lock()
		defer c.reading.Unlock()
		c.Conn.SetReadDeadline(time.Now().Add(lingerTime))
		io.Copy(io.Discard, c.Conn)
	}()
	return nil
}

func (c *conn) leave() {
	c.once.Do(func() {
		close(c.gone)
		c.lobby.leave(c)
	})
}

type connKey struct{}

// connContext makes the context of a connection's requests end with the connection,
// and closes a connection that was hijacked from net/http when the server is closed.
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

// closeTaken closes the connection of a request's context if it was hijacked.
func closeTaken(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*conn); ok && c.taken.Load() {
		c.Close()
	}
}
