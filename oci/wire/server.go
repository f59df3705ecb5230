package wire

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/poke"
	"github.com/crisp-cri/crisp/internal/unixsock"
)

// ErrGone is the cause (context.Cause) of a call's ctx that ended with its connection; a
// cancelled call has another cause.
var ErrGone = errors.New("the client's connection has ended")

// A Handler answers calls. Each call has its own goroutine; ctx ends when the caller cancels or
// its connection ends (ErrGone). The handler owns the files of the call; those that it returns
// are closed once they are sent.
type Handler interface {
	Call(ctx context.Context, from *Conn, call *Call) (reply any, send []*os.File, err error)
}

type Call struct {
	Method string
	Files  []*os.File
	// Then, if the handler sets it, is called once the answer has been written, or
	// writing it has failed.
	Then func()
	body []byte
}

// Decode stores the request in v. The error is fault.Invalid if it cannot be decoded.
func (c *Call) Decode(v any) error {
	if err := unmarshal(c.body, v); err != nil {
		return fault.Invalid.Errorf("%s: %w", c.Method, err)
	}
	return nil
}

// DecodeRun is Decode of a RunRequest. profile decodes the seccomp profile in it, which is most of it and
// nearly always the same as before.
func (c *Call) DecodeRun(profile func(text []byte) (*specs.LinuxSeccomp, error)) (RunRequest, error) {
	var in struct {
		RunRequest
		Spec struct { // in place of its own
			specs.Spec
			Linux *struct {
				specs.Linux
				Seccomp json.RawMessage `json:"seccomp"`
			} `json:"linux"`
		}
	}
	err := c.Decode(&in)
	req := in.RunRequest
	req.Spec = &in.Spec.Spec
	if linux := in.Spec.Linux; err == nil && linux != nil {
		if req.Spec.Linux = &linux.Linux; linux.Seccomp != nil {
			req.Spec.Linux.Seccomp, err = profile(linux.Seccomp)
		}
	}
	return req, err
}

// File removes the file called name from the call and returns it, or nil.
func (c *Call) File(name string) *os.File {
	for i, f := range c.Files {
		if f != nil && f.Name() == name {
			c.Files[i] = nil
			return f
		}
	}
	return nil
}

// maxQueue bounds the queue of a client that does not read. At the bound its connection is
// closed; it then reconnects and asks for a list.
const maxQueue = 16384 // frames

// A Conn is one client's connection, on the server's side.
type Conn struct {
	conn    *net.UnixConn
	pid     int // of the client; 0 = not visible in our PID namespace
	others  *connections
	done    chan struct{}  // closed when the connection has ended
	calling sync.WaitGroup // calls received and not yet answered
	settled chan struct{}  // closed when the connection has ended and calling is empty
	passed  atomic.Bool    // see Passed

	mu    sync.Mutex
	calls map[uint64]context.CancelCauseFunc // guarded by mu
	queue []outgoing                         // guarded by mu
	ended bool                               // guarded by mu
	wake  chan struct{}                      // queue is not empty; capacity 1
}

type outgoing struct {
	data  []byte
	files []*os.File
	sent  chan struct{} // closed when written or given up, unless nil
}

// connections are the unsettled connections of one server.
type connections struct {
	mu  sync.Mutex
	all map[*Conn]struct{} // guarded by mu
}

// endGrace is how long it may take until we see that a client was killed.
const endGrace = 200 * time.Millisecond

// Settle waits until the calls of clients that connected before c have taken effect: a client
// that was killed leaves calls behind, some perhaps not even read yet, and its successor must
// not look before they are done. Settle waits only a moment for clients that are alive. If ctx
// ends before the calls of a dead one are done, that client has been Passed.
func (c *Conn) Settle(ctx context.Context) {
	c.others.mu.Lock()
	others := make([]*Conn, 0, len(c.others.all))
	for o := range c.others.all {
		if o != c {
			others = append(others, o)
		}
	}
	c.others.mu.Unlock()
	grace := time.NewTimer(endGrace)
	defer grace.Stop()
	late := false
	for _, o := range others {
		if !late {
			select {
			case <-o.done:
			case <-grace.C:
				late = true
			case <-ctx.Done():
				late = true
			}
		}
		select {
		case <-o.done:
		default:
			continue // alive
		}
		select {
		case <-o.settled:
		case <-ctx.Done():
			o.passed.Store(true)
		}
	}
}

// Passed reports whether c has ended with unfinished calls for which a later client no longer
// waits: those that have not begun must not begin.
func (c *Conn) Passed() bool { return c.passed.Load() }

// Done returns a channel that is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Pid returns the client's process; 0 if it is not visible from here.
func (c *Conn) Pid() int { return c.pid }

// Emit sends an event. It does not wait for the client.
func (c *Conn) Emit(e Event) {
	if data, err := encode(header{Event: true}, e, nil); err == nil {
		c.push(outgoing{data: data})
	}
}

// Serve answers the connections of l with h until l is closed; then it closes them, which ends
// their calls. Only root and the server's own user may connect.
func Serve(l interface{ AcceptUnix() (*net.UnixConn, error) }, h Handler, log *slog.Logger) {
	conns := &connections{all: make(map[*Conn]struct{})}
	for {
		conn, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			conns.mu.Lock()
			defer conns.mu.Unlock()
			for c := range conns.all {
				c.conn.Close()
			}
			return
		}
		if err != nil { // e.g. out of descriptors, which must not end the server
			log.Error("connection not accepted", "err", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		pid, err := allowed(conn)
		if err != nil {
			log.Warn("connection refused", "err", err)
			conn.Close()
			continue
		}
		c := &Conn{
			conn:    conn,
			pid:     pid,
			others:  conns,
			done:    make(chan struct{}),
			settled: make(chan struct{}),
			calls:   make(map[uint64]context.CancelCauseFunc),
			wake:    make(chan struct{}, 1),
		}
		conns.mu.Lock()
		conns.all[c] = struct{}{}
		conns.mu.Unlock()
		go c.write()
		go c.read(h, log)
	}
}

// allowed checks who has connected, and returns the client's process.
func allowed(conn *net.UnixConn) (pid int, err error) {
	cred, err := unixsock.Peer(conn)
	if err != nil {
		return 0, err
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return 0, fault.Invalid.Errorf("user %d may not connect", cred.Uid)
	}
	return int(cred.Pid), nil
}

// read starts a goroutine for each incoming call.
func (c *Conn) read(h Handler, log *slog.Logger) {
	r := reader{conn: c.conn}
	for {
		f, err := r.next()
		if err != nil {
			break
		}
		switch {
		case f.Cancel:
			c.cancel(f.ID)
		case f.Method != "":
			ctx, cancel := context.WithCancelCause(context.Background())
			c.mu.Lock()
			c.calls[f.ID] = cancel
			c.mu.Unlock()
			c.calling.Go(func() { c.answer(ctx, h, f, log) })
		default:
			f.closeFiles()
		}
	}
	r.close()
	c.end()
	c.calling.Wait()
	c.others.mu.Lock()
	delete(c.others.all, c)
	c.others.mu.Unlock()
	close(c.settled)
}

func (c *Conn) answer(ctx context.Context, h Handler, f *frame, log *slog.Logger) {
	call := &Call{Method: f.Method, Files: f.files, body: f.body}
	reply, files, err := guarded(ctx, h, c, call, log)
	CloseAll(call.Files) // those that the handler did not take
	c.cancel(f.ID)
	head := header{ID: f.ID, Reply: true}
	if err != nil {
		head.Err, reply = newFailure(err), nil
	}
	data, err := encode(head, reply, files)
	if err != nil {
		head.Err = newFailure(err)
		data, _ = encode(head, nil, nil)
		CloseAll(files)
		files = nil
	}
	c.push(outgoing{data: data, files: files})
	if call.Then != nil {
		sent := make(chan struct{}) // when everything pushed so far has been written
		c.push(outgoing{sent: sent})
		select {
		case <-sent:
		case <-c.done:
		}
		call.Then()
	}
}

// guarded turns a panic of one call into its error: every container of the node depends on this
// process.
func guarded(ctx context.Context, h Handler, c *Conn, call *Call, log *slog.Logger) (reply any, files []*os.File, err error) {
	err = fault.Protect(func() (err error) {
		reply, files, err = h.Call(ctx, c, call)
		return err
	})
	if p, ok := errors.AsType[*fault.Panic](err); ok { // of the call, or of a step that it has protected
		log.Error("call panicked", "rpc", call.Method, "err", p.Value, "stack", string(p.Stack))
	}
	return reply, files, err
}

func (c *Conn) cancel(id uint64) {
	c.mu.Lock()
	cancel := c.calls[id]
	delete(c.calls, id)
	c.mu.Unlock()
	if cancel != nil {
		cancel(nil)
	}
}

func (c *Conn) push(o outgoing) {
	c.mu.Lock()
	drop := c.ended
	full := len(c.queue) >= maxQueue
	if !drop {
		c.queue = append(c.queue, o)
	}
	c.mu.Unlock()
	if drop {
		o.drop()
		return
	}
	if full {
		c.conn.Close()
	}
	poke.Wake(c.wake)
}

func (o outgoing) drop() {
	CloseAll(o.files)
	if o.sent != nil {
		close(o.sent)
	}
}

func (c *Conn) write() {
	for {
		select {
		case <-c.wake:
		case <-c.done:
			return
		}
		c.mu.Lock()
		batch := c.queue
		c.queue = nil
		c.mu.Unlock()
		broken := false
		for _, o := range batch {
			if !broken && len(o.data) > 0 && send(c.conn, o.data, o.files) != nil {
				broken = true
				c.conn.Close()
			}
			o.drop() // sent or not, we must close the files
		}
	}
}

// end cancels the calls in flight and drops what was not sent.
func (c *Conn) end() {
	c.conn.Close()
	c.mu.Lock()
	c.ended = true
	queue, calls := c.queue, c.calls
	c.queue, c.calls = nil, make(map[uint64]context.CancelCauseFunc)
	c.mu.Unlock()
	close(c.done)
	for _, cancel := range calls {
		cancel(ErrGone)
	}
	for _, o := range queue {
		o.drop()
	}
}
