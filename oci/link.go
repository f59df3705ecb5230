package oci

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/crisp-cri/crisp/oci/wire"
)

// linkWait is how long a call waits for an executor that is being replaced, which takes some 50
// ms; a caller that has waited this long should get an error.
const linkWait = 20 * time.Second

// An ExecutorConn is a connection to the executor, in the language of package wire.
// *wire.Client is one; the other is in ocitest, for tests.
type ExecutorConn interface {
	// Call asks for method and waits. The files sent stay the caller's, those
	// received become the caller's. fault.Unavailable = the connection was lost,
	// and whether the work was done is unknown.
	Call(ctx context.Context, method string, req, reply any, send ...*os.File) ([]*os.File, error)
	// Events is closed when the connection has ended.
	Events() <-chan wire.Event
	Close() error
}

// A link is the connection to the executor that is in force. When one ends, keep
// makes the next, and calls wait for it.
type link struct {
	dial   func(context.Context) (ExecutorConn, error)
	settle func(context.Context, ExecutorConn) error // brings our state in line before any call
	handle func(wire.Event)                          // must not block
	log    *slog.Logger

	closed func()        // closes done, once
	done   chan struct{} // closed to end the link

	mu   sync.Mutex
	conn ExecutorConn  // nil while disconnected; guarded by mu
	up   chan struct{} // closed when conn is set; replaced when it is lost; guarded by mu

	connects uint64       // how often conn was set; guarded by mu
	coming   ExecutorConn // being settled; guarded by mu
	why      error        // why there is no conn; guarded by mu

	trouble atomic.Pointer[error] // of watch
}

func newLink(dial func(context.Context) (ExecutorConn, error), settle func(context.Context, ExecutorConn) error, handle func(wire.Event), log *slog.Logger) *link {
	l := &link{dial: dial, settle: settle, handle: handle, log: log, up: make(chan struct{}), done: make(chan struct{})}
	l.closed = sync.OnceFunc(func() { close(l.done) })
	return l
}

// connectTries is how many executors are tried that end before they answer. An executor may have
// been asked to end just before; a second one hardly ever.
const connectTries = 5

// connect dials, settles and publishes the new connection. If the executor goes away meanwhile,
// dial finds or starts the next.
func (l *link) connect(ctx context.Context) error {
	var conn ExecutorConn
	for try := 1; ; try++ {
		var err error
		if conn, err = l.dial(ctx); err != nil {
			return err
		}
		l.mu.Lock()
		l.coming = conn
		l.mu.Unlock()
		err = l.settle(ctx, conn)
		l.mu.Lock()
		l.coming = nil
		if err == nil {
			l.conn, l.why = conn, nil
			l.connects++
			close(l.up)
		}
		l.mu.Unlock()
		if err == nil {
			break
		}
		conn.Close()
		drain(conn)
		if try == connectTries || !errors.Is(err, fault.Unavailable) || ctx.Err() != nil {
			return err
		}
		l.log.Info("executor was lost during a request", "err", err)
	}
	select {
	case <-l.done:
		conn.Close() // close may have come too early to see it
	default:
	}
	return nil
}

// keep delivers events, and replaces the connection whenever it ends, until close.
func (l *link) keep(ctx context.Context) {
	for {
		conn := l.current()
		for e := range conn.Events() {
			l.handle(e)
		}
		conn.Close()
		l.mu.Lock()
		l.conn, l.up = nil, make(chan struct{})
		l.mu.Unlock()
		select {
		case <-l.done:
			return
		default:
		}
		l.log.Warn("executor was lost")
		for pause := backoff.New(10*time.Millisecond, 5*time.Second); ; {
			err := l.connect(ctx)
			if err == nil {
				l.log.Info("executor was found again")
				break
			}
			select {
			case <-l.done:
				return
			default:
			}
			l.log.Error("executor could not be reached", "err", err)
			l.mu.Lock()
			l.why = err
			l.mu.Unlock()
			select {
			case <-l.done:
				return
			case <-time.After(pause.Next()):
			}
		}
	}
}

// get returns the current connection; it waits a while for one.
func (l *link) get(ctx context.Context) (ExecutorConn, error) {
	timer := time.NewTimer(linkWait)
	defer timer.Stop()
	for {
		l.mu.Lock()
		conn, up := l.conn, l.up
		l.mu.Unlock()
		select {
		case <-l.done:
			return nil, fault.Unavailable.Errorf("executor: the runtime is closed")
		default:
		}
		if conn != nil {
			return conn, nil
		}
		select {
		case <-up:
		case <-l.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timer.C:
			return nil, fault.Unavailable.Errorf("no executor within %v", linkWait)
		}
	}
}

// call is ExecutorConn.Call on the current connection. After fault.Unavailable the caller may
// retry at once: the failed connection is no longer current.
func (l *link) call(ctx context.Context, method string, req, reply any) ([]*os.File, error) {
	conn, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	return l.callOn(ctx, conn, method, req, reply)
}

func (l *link) callOn(ctx context.Context, conn ExecutorConn, method string, req, reply any) ([]*os.File, error) {
	end := stage.Enter(ctx, "executor."+method)
	files, err := conn.Call(ctx, method, req, reply)
	end()
	if errors.Is(err, fault.Unavailable) {
		l.gone(ctx, conn)
	}
	return files, err
}

// again is call for what may be done twice: it outlasts one loss of the
// executor.
func (l *link) again(ctx context.Context, method string, req, reply any) error {
	var err error
	for range 3 {
		conn, gerr := l.get(ctx)
		if gerr != nil {
			return errors.Join(err, gerr)
		}
		if _, err = l.callOn(ctx, conn, method, req, reply); !errors.Is(err, fault.Unavailable) {
			return err
		}
	}
	return err
}

// gone waits until conn, which has just failed, is no longer current.
func (l *link) gone(ctx context.Context, conn ExecutorConn) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for pause := backoff.New(time.Millisecond, time.Second); ; {
		if l.current() != conn || pause.Wait(ctx) != nil {
			return
		}
	}
}

// list asks what the executor has; it outlasts its loss.
func (l *link) list(ctx context.Context) (infos []wire.Info, err error) {
	err = l.again(ctx, wire.MethodList, nil, &infos)
	return infos, err
}

// current returns the current connection; nil = none.
func (l *link) current() ExecutorConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn
}

// close ends the connection for good; keep returns.
func (l *link) close() error {
	l.closed()
	conn := l.current()
	if conn == nil {
		return nil
	}
	if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close executor's connection: %w", err)
	}
	return nil
}

// shutdown ends the executor, and with it the link.
func (l *link) shutdown(ctx context.Context) error {
	conn, err := l.get(ctx)
	if err != nil {
		return err
	}
	l.closed() // its end is intended
	_, err = l.callOn(ctx, conn, wire.MethodShutdown, nil, nil)
	if errors.Is(err, fault.Unavailable) {
		err = nil // it ended before it could answer
	}
	if err == nil {
		l.gone(ctx, conn)
	}
	return err
}

// drain discards the remaining events of a connection, so that their sender does not block.
func drain(conn ExecutorConn) {
	for range conn.Events() {
	}
}

// An executor that dies is replaced at once. One that hangs would hang for ever: no pod starts,
// no exit is seen, no output read. So every pingEvery it gets a call that only a working
// executor answers. After reportAfter unanswered pings in a row Trouble reports it; after
// killAfter it is killed, and thereby replaced.
//
// An upgrade may keep it busy for its own quiet time, 10 s, and memory shortage for longer than
// that.
const (
	pingEvery   = 5 * time.Second
	reportAfter = 4
	killAfter   = 12
)

// A processConn is a connection to an executor that is a process.
type processConn interface {
	// Pid returns the process at the other end of the connection.
	Pid() (int, error)
	// Kill sends SIGKILL to the process at the other end of the connection.
	Kill() error
}

// Trouble returns why containers can currently be neither started nor ended: the executor does not
// answer, or does not run. nil = they can.
func (r *Runtime) Trouble() error {
	if err := r.link.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// watch watches the executor until ctx ends.
func (l *link) watch(ctx context.Context) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	failed, logged := 0, false
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		case <-l.done:
			return
		}
		conn, err := l.ping(ctx)
		if err == nil {
			if logged {
				l.log.Info("executor answers again")
			}
			failed, logged = 0, false
			l.trouble.Store(nil)
			continue
		}
		if failed++; failed < reportAfter && !logged {
			continue
		}
		if !logged {
			l.log.Error("executor is in trouble", "err", err)
			logged = true
		}
		l.trouble.Store(&err)
		if m, ok := conn.(processConn); ok && failed >= killAfter {
			l.log.Error("executor is killed, to be replaced", "err", err, "kill", m.Kill())
			failed = 0 // its successor gets as long
		}
	}
}

// ping calls the current executor, or the one being settled. It takes up to pingEvery; any
// answer will do.
func (l *link) ping(ctx context.Context) (ExecutorConn, error) {
	ctx, cancel := context.WithTimeout(ctx, pingEvery)
	defer cancel()
	l.mu.Lock()
	conn, why := l.conn, l.why
	if conn == nil {
		conn = l.coming
	}
	l.mu.Unlock()
	if conn == nil {
		if why == nil {
			why = errors.New("it is being started")
		}
		return nil, fault.Unavailable.Errorf("no executor: %w", why)
	}
	_, err := conn.Call(ctx, wire.MethodPing, nil, nil)
	switch {
	case ctx.Err() != nil:
		return conn, fault.Unavailable.Errorf("executor has not answered within %v", pingEvery)
	case errors.Is(err, fault.Unavailable):
		return nil, fmt.Errorf("ask executor: %w", err) // it is gone, which keep handles
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		// If the executor answers, killing it would only start over.
		return nil, fault.Unavailable.Errorf("executor answers, but the containers are not settled yet")
	}
	return conn, nil
}
