package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
)

// listen returns an address at which serve gets each connection.
func listen(t *testing.T, serve func(net.Conn)) Address {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
			all.Go(func() { serve(conn) })
		}
	})
	return Address{Program: "/bin/shim", Path: path, Version: 3}
}

// A shim that dies or sends what is no answer ends all its calls, with an error that names it; none
// hangs.
func TestConnectionEnds(t *testing.T) {
	for _, tt := range []struct {
		name, why string
		send      []byte
	}{
		{"death", "the shim has closed it", nil},
		{"half a header", "unexpected EOF", []byte{0, 0, 0}},
		{"half a frame", "unexpected EOF", []byte{0, 0, 0, 9, 0, 0, 0, 1, responseFrame, 0, 1}},
		{"long frame", "a frame of 4294967295 bytes, at most 4194304", []byte{255, 255, 255, 255, 0, 0, 0, 1, responseFrame, 0}},
		{"no message", "malformed response", frame{1, responseFrame, []byte{7}}.bytes()},
		{"a stream's data", "malformed response: it has type 3", frame{1, 3, nil}.bytes()},
		{"text is not UTF-8", "malformed response: a string is not UTF-8", frame{1, responseFrame, []byte{1<<3 | 2, 3, 2<<3 | 2, 1, 0xff}}.bytes()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const waiting = 3
			asked := make(chan struct{})
			a := listen(t, func(conn net.Conn) {
				for range waiting {
					if _, err := readFrame(conn, maxData); err != nil {
						t.Error(err)
					}
				}
				close(asked)
				conn.Write(tt.send)
				conn.Close()
			})
			c := connect(t, a)
			errs := make(chan error)
			for range waiting {
				go func() {
					_, err := c.Wait(context.Background(), "c", "")
					errs <- err
				}()
			}
			<-asked
			want := fmt.Sprintf("Wait: shim /bin/shim at %s: connection lost: %s", a.Path, tt.why)
			for range waiting {
				if err := <-errs; !errors.Is(err, ErrLost) || !errors.Is(err, fault.Unavailable) || !strings.HasPrefix(err.Error(), want) {
					t.Errorf("the error is %v, want %s", err, want)
				}
			}
			<-c.Done()
			if _, err := c.State(context.Background(), "c", ""); !errors.Is(err, ErrLost) {
				t.Errorf("a later call ends with %v", err)
			}
			if err := c.Shutdown(context.Background(), "c", true); err != nil {
				t.Errorf("Shutdown of what has ended: %v", err)
			}
		})
	}
}

// Answers that decode, but not as the answer of the call, fail that call alone.
func TestMalformedAnswers(t *testing.T) {
	a := listen(t, func(conn net.Conn) {
		for {
			f, err := readFrame(conn, maxData)
			if err != nil {
				return
			}
			conn.Write(frame{f.stream + 2, responseFrame, []byte("to a call that there is not")}.bytes())
			conn.Write(frame{f.stream, responseFrame, response{payload: []byte{1<<3 | 2, 200}}.encode()}.bytes())
		}
	})
	c := connect(t, a)
	for _, m := range methods {
		switch _, err := m.call(t.Context(), c); {
		case m.want == nil && err != nil: // the answer is not read
			t.Errorf("%s: %v", m.name, err)
		case m.want != nil && (err == nil || !strings.Contains(err.Error(), m.name+": answer: malformed message: ")):
			t.Errorf("%s: the error is %v", m.name, err)
		}
	}
}

// A shim that does not read: calls end in time, and the connection with them once a request was sent
// in part. It cannot keep the lock.
func TestShimDoesNotRead(t *testing.T) {
	quit := make(chan struct{})
	c := connect(t, listen(t, func(net.Conn) { <-quit }))
	t.Cleanup(func() { close(quit) }) // before the listener waits for its connections
	spec := ProcessSpec(make([]byte, 1<<20))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if err := c.Exec(ctx, ExecRequest{ID: "c", Spec: spec}); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrLost) {
				t.Errorf("the error is %v", err)
			}
		})
	}
	all.Wait()
	<-c.Done()
}

// Calls that have no answer are bounded.
func TestTooManyCalls(t *testing.T) {
	c := connect(t, listen(t, func(conn net.Conn) { io.Copy(io.Discard, conn) }))
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range maxCalls {
		all.Go(func() { c.Wait(ctx, "c", "") })
	}
	for c.waiting() < maxCalls {
		time.Sleep(time.Millisecond)
	}
	if err := c.CloseIO(t.Context(), "c", ""); !errors.Is(err, fault.Unavailable) || errors.Is(err, ErrLost) {
		t.Errorf("the error is %v", err)
	}
	cancel()
	all.Wait()
	if n := c.waiting(); n != 0 {
		t.Errorf("%d calls are left", n)
	}
}

func (c *Client) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls)
}

// The numbers of streams do not wrap: a shim would take them for used ones.
func TestStreamsEnd(t *testing.T) {
	c := connect(t, listen(t, func(conn net.Conn) { io.Copy(io.Discard, conn) }))
	c.next = lastStream
	if err := c.CloseIO(t.Context(), "c", ""); !errors.Is(err, fault.Unavailable) {
		t.Errorf("the error is %v", err)
	}
	<-c.Done()
}

func TestDialFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	a := Address{Program: "/bin/shim", Path: path, Version: 2}
	if _, err := Dial(t.Context(), a); !errors.Is(err, fault.Unavailable) || !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), a.String()) {
		t.Errorf("the error is %v", err)
	}
}
