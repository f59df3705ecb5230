package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/poke"
	"github.com/crisp-cri/crisp/internal/unixsock"
)

// A Client is one connection to the executor. Its methods may be called from any
// goroutine.
type Client struct {
	conn   *net.UnixConn
	events chan Event
	gone   chan struct{} // closed when the connection has ended
	unread chan struct{} // closed by Close: events are no longer read
	once   sync.Once     // of Close

	sending sync.Mutex // serializes frames

	mu    sync.Mutex
	last  uint64                 // ID of the latest call; guarded by mu
	calls map[uint64]chan *frame // waiting for an answer; guarded by mu, nil when gone
	given map[uint64]bool        // abandoned execs not answered yet; guarded by mu
	queue []Event                // not yet read; guarded by mu
	wake  chan struct{}          // queue is not empty; capacity 1
}

// Dial connects to the executor that listens at path. The error is fault.Unavailable if none
// does.
func Dial(ctx context.Context, path string) (*Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fault.Unavailable.Errorf("executor: %w", err)
	}
	c := &Client{
		conn:   conn.(*net.UnixConn),
		events: make(chan Event),
		gone:   make(chan struct{}),
		unread: make(chan struct{}),
		calls:  make(map[uint64]chan *frame),
		given:  make(map[uint64]bool),
		wake:   make(chan struct{}, 1),
	}
	go c.receive()
	go c.deliver()
	return c, nil
}

// Call calls the executor and waits for its answer, which it stores in reply unless that is nil.
// The caller keeps the files in send, and owns those in recv, whose names the method defines.
//
// If ctx ends first, Call returns its error: whether the work was done is then unknown, except
// that an exec leaves no process. The error is fault.Unavailable if the connection ended.
func (c *Client) Call(ctx context.Context, method string, req, reply any, send ...*os.File) (recv []*os.File, err error) {
	id, answer, err := c.enter()
	if err != nil {
		return nil, err
	}
	data, err := encode(header{ID: id, Method: method}, req, send)
	if err == nil {
		err = c.send(data, send)
	}
	if err != nil {
		c.giveUp(id, false)
		return nil, fmt.Errorf("executor: %s: %w", method, err)
	}
	var f *frame
	select {
	case f = <-answer:
	case <-ctx.Done():
		if c.giveUp(id, method == MethodExec) { // else the answer has arrived
			if data, err := encode(header{ID: id, Cancel: true}, nil, nil); err == nil {
				c.send(data, nil) // best effort: a dead connection cancels by itself
			}
			return nil, ctx.Err()
		}
		f = <-answer
	}
	if f == nil {
		return nil, fault.Unavailable.Errorf("executor: connection lost during %s", method)
	}
	if f.Err != nil {
		f.closeFiles()
		return nil, f.Err.err()
	}
	if err := unmarshal(f.body, reply); err != nil {
		f.closeFiles()
		return nil, fmt.Errorf("executor: answer to %s: %w", method, err)
	}
	return f.files, nil
}

// Events returns the events that follow MethodSubscribe. None is dropped, however slowly they
// are read. The channel is closed once the connection has ended and all earlier events have been
// read, or on Close.
func (c *Client) Events() <-chan Event { return c.events }

// Close closes the connection, which ends the calls in flight.
func (c *Client) Close() error {
	c.once.Do(func() { close(c.unread) })
	return c.conn.Close()
}

// Pid returns the PID of the process that listens at the other end. The error is net.ErrClosed
// if the connection has ended.
func (c *Client) Pid() (int, error) {
	cred, err := unixsock.Peer(c.conn)
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// Kill sends SIGKILL to the process that listens at the other end. It is no error if the process
// has ended.
func (c *Client) Kill() error {
	pid, err := c.Pid()
	if errors.Is(err, net.ErrClosed) {
		return nil // the process ended with the connection
	}
	if err != nil {
		return err
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pidfd of executor: %w", err)
	}
	defer unix.Close(pidfd)
	// As long as the connection exists, so does the process, and its PID is not reused.
	select {
	case <-c.gone:
		return nil
	default:
	}
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("kill executor, process %d: %w", pid, err)
	}
	return nil
}

func (c *Client) send(data []byte, files []*os.File) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	if err := send(c.conn, data, files); err != nil {
		c.conn.Close() // part of a frame may have been sent
		return fault.Unavailable.Errorf("%w", err)
	}
	return nil
}

// enter registers a call. Its channel gets one frame, or is closed.
func (c *Client) enter() (uint64, chan *frame, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		return 0, nil, fault.Unavailable.Errorf("executor: connection lost")
	}
	c.last++
	answer := make(chan *frame, 1)
	c.calls[c.last] = answer
	return c.last, answer, nil
}

// giveUp forgets a call that its caller has abandoned. If an exec has started a process after all,
// the process is killed when the answer comes, as it would have no owner.
func (c *Client) giveUp(id uint64, exec bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.calls[id]
	delete(c.calls, id)
	if ok && exec {
		c.given[id] = true
	}
	return ok
}

// endExec kills an exec whose caller is gone, and makes the executor forget it.
func (c *Client) endExec(f *frame) {
	var e ExecReply
	if f.Err != nil || unmarshal(f.body, &e) != nil {
		return
	}
	ref := ExecRef{ExecID: e.ExecID}
	ctx := context.Background() // both calls end with the connection
	if _, err := c.Call(ctx, MethodExecKill, ref, nil); err == nil {
		_, _ = c.Call(ctx, MethodExecWait, ref, nil)
	}
}

// receive dispatches frames until the connection ends.
func (c *Client) receive() {
	r := reader{conn: c.conn}
	for {
		f, err := r.next()
		if err != nil {
			break
		}
		c.mu.Lock()
		switch {
		case f.Event:
			var e Event
			if unmarshal(f.body, &e) == nil {
				c.queue = append(c.queue, e)
			}
			poke.Wake(c.wake)
		case f.Reply && c.calls[f.ID] != nil:
			c.calls[f.ID] <- f
			delete(c.calls, f.ID)
		default:
			f.closeFiles() // the answer to an abandoned call
			if c.given[f.ID] {
				delete(c.given, f.ID)
				go c.endExec(f)
			}
		}
		c.mu.Unlock()
	}
	r.close()
	c.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, answer := range c.calls {
		close(answer)
	}
	c.calls = nil
	close(c.gone)
}

// deliver moves events from the queue to the channel, so that a slow reader of events does not
// delay answers.
func (c *Client) deliver() {
	defer close(c.events)
	for {
		c.mu.Lock()
		batch := c.queue
		c.queue = nil
		over := c.calls == nil
		c.mu.Unlock()
		for _, e := range batch {
			select {
			case c.events <- e:
			case <-c.unread:
				return
			}
		}
		if over && len(batch) == 0 {
			return
		}
		if len(batch) == 0 {
			select {
			case <-c.wake:
			case <-c.gone:
			}
		}
	}
}
