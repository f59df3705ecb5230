package wire_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A handler is a function for each method.
type handler map[string]func(context.Context, *wire.Conn, *wire.Call) (any, []*os.File, error)

func (h handler) Call(ctx context.Context, from *wire.Conn, call *wire.Call) (any, []*os.File, error) {
	f, ok := h[call.Method]
	if !ok {
		return nil, nil, fault.Invalid.Errorf("unknown method %q", call.Method)
	}
	return f(ctx, from, call)
}

// serve serves h and returns the path of its socket and a client.
func serve(t *testing.T, h handler) (string, *wire.Client) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go wire.Serve(l, h, slog.New(slog.NewTextHandler(io.Discard, nil)))
	c, err := wire.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return path, c
}

type text struct{ S string }

func echo(_ context.Context, _ *wire.Conn, call *wire.Call) (any, []*os.File, error) {
	var req text
	err := call.Decode(&req)
	return req, nil, err
}

// pipe is os.Pipe with names for its files.
func pipe(reader, writer string) (r, w *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), reader), os.NewFile(uintptr(fds[1]), writer), nil
}

// Calls are answered in any order, and each gets its own answer and descriptors.
func TestCallsAtOnce(t *testing.T) {
	_, c := serve(t, handler{
		"echo": echo,
		"pipe": func(_ context.Context, _ *wire.Conn, call *wire.Call) (any, []*os.File, error) {
			var req text
			if err := call.Decode(&req); err != nil {
				return nil, nil, err
			}
			out := call.File("out")
			defer out.Close()
			_, err := out.WriteString(req.S)
			r, w, perr := pipe("in", "")
			if perr != nil {
				return nil, nil, perr
			}
			w.WriteString(req.S)
			w.Close()
			return req, []*os.File{r}, err
		},
	})
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			want := text{strings.Repeat(fmt.Sprint(i), 5000*(i%3)+1)}
			var got text
			if _, err := c.Call(t.Context(), "echo", want, &got); err != nil || got != want {
				t.Errorf("echo %d: %v", i, err)
			}
			want = text{fmt.Sprint("pipe ", i)}
			r, w, err := pipe("", "out")
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Close()
			files, err := c.Call(t.Context(), "pipe", want, &got, w)
			w.Close()
			if err != nil || len(files) != 1 || files[0].Name() != "in" {
				t.Errorf("pipe %d: %v, %v", i, files, err)
				return
			}
			defer files[0].Close()
			for _, f := range []*os.File{r, files[0]} {
				if data, err := io.ReadAll(f); err != nil || string(data) != want.S {
					t.Errorf("pipe %d: read %q, %v", i, data, err)
				}
			}
		})
	}
	wg.Wait()
}

// The server maps the kinds of errors to status codes: they must survive the connection.
func TestErrorKinds(t *testing.T) {
	kinds := map[string]fault.Kind{}
	h := handler{}
	for _, k := range []fault.Kind{fault.Internal, fault.Invalid, fault.NotFound, fault.Exists, fault.WrongState, fault.Unavailable} {
		kinds[k.String()] = k
		h[k.String()] = func(context.Context, *wire.Conn, *wire.Call) (any, []*os.File, error) {
			return nil, nil, fmt.Errorf("outer: %w", k.Errorf("inner"))
		}
	}
	h["panic"] = func(context.Context, *wire.Conn, *wire.Call) (any, []*os.File, error) { panic("oh") }
	_, c := serve(t, h)
	for name, k := range kinds {
		_, err := c.Call(t.Context(), name, nil, nil)
		if err == nil || fault.KindOf(err) != k || err.Error() != "outer: inner" {
			t.Errorf("%s came as %q of kind %v", name, err, fault.KindOf(err))
		}
	}
	if _, err := c.Call(t.Context(), "panic", nil, nil); err == nil {
		t.Error("a panic was answered without an error")
	}
	if _, err := c.Call(t.Context(), "nosuch", nil, nil); !errors.Is(err, fault.Invalid) {
		t.Errorf("unknown method: %v", err)
	}
}

// A caller that gives up cancels its call, and the connection stays usable.
func TestAbandonedCall(t *testing.T) {
	cancelled := make(chan struct{})
	_, c := serve(t, handler{
		"echo": echo,
		"hang": func(ctx context.Context, _ *wire.Conn, _ *wire.Call) (any, []*os.File, error) {
			<-ctx.Done()
			close(cancelled)
			return nil, nil, ctx.Err()
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Call(ctx, "hang", nil, nil); err != context.DeadlineExceeded {
		t.Errorf("got %v", err)
	}
	<-cancelled
	var got text
	if _, err := c.Call(t.Context(), "echo", text{"on"}, &got); err != nil || got.S != "on" {
		t.Errorf("a call after it: %v, %v", got, err)
	}
}

// The end of a connection ends its calls, on both sides.
func TestConnectionEnds(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	path, c := serve(t, handler{
		"hang": func(ctx context.Context, from *wire.Conn, _ *wire.Call) (any, []*os.File, error) {
			close(began)
			<-ctx.Done()
			<-from.Done()
			close(ended)
			return nil, nil, ctx.Err()
		},
	})
	got := make(chan error)
	go func() {
		_, err := c.Call(t.Context(), "hang", nil, nil)
		got <- err
	}()
	<-began
	c.Close()
	if err := <-got; !errors.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
	<-ended
	if _, err := c.Call(t.Context(), "hang", nil, nil); !errors.Is(err, fault.Unavailable) {
		t.Errorf("call on a closed connection: %v", err)
	}
	if _, ok := <-c.Events(); ok {
		t.Error("an event after the connection's end")
	}
	os.Remove(path)
	if _, err := wire.Dial(t.Context(), path); !errors.Is(err, fault.Unavailable) {
		t.Errorf("dial without a listener: %v", err)
	}
}

// No event is lost, and a slow reader of events delays no call.
func TestEvents(t *testing.T) {
	const many = 5000
	_, c := serve(t, handler{
		"echo": echo,
		wire.MethodSubscribe: func(_ context.Context, from *wire.Conn, _ *wire.Call) (any, []*os.File, error) {
			for i := range many {
				from.Emit(wire.Event{Kind: wire.EventExit, ID: fmt.Sprint(i), Exit: &wire.Exit{Code: int32(i)}})
			}
			return nil, nil, nil
		},
	})
	if _, err := c.Call(t.Context(), wire.MethodSubscribe, nil, nil); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if _, err := c.Call(t.Context(), "echo", text{"x"}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for i := range many {
		e := <-c.Events()
		if e.ID != fmt.Sprint(i) || e.Exit.Code != int32(i) {
			t.Fatalf("event %d is %+v", i, e)
		}
	}
}

// Then runs after the answer was sent: an executor that is to be upgraded answers first.
func TestThen(t *testing.T) {
	then := make(chan struct{})
	_, c := serve(t, handler{"bye": func(_ context.Context, _ *wire.Conn, call *wire.Call) (any, []*os.File, error) {
		call.Then = func() { close(then) }
		return text{"bye"}, nil, nil
	}})
	if _, err := c.Call(t.Context(), "bye", nil, nil); err != nil {
		t.Error(err)
	}
	<-then
}

// Whatever a client sends, with however many files, the server does not crash, continues
// serving others, and leaves no file open.
func FuzzFrame(f *testing.F) {
	path := filepath.Join(f.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		f.Fatal(err)
	}
	defer l.Close()
	go wire.Serve(l, closing{handler{"echo": echo}}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	frame := func(head, body string) []byte {
		b := binary.BigEndian.AppendUint32(nil, uint32(len(head)))
		b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
		return append(append(b, head...), body...)
	}
	f.Add(frame(`{"id":1,"method":"echo"}`, `{"S":"x"}`), uint8(0))
	f.Add(frame(`{"id":1,"method":"echo","fds":["a"]}`, ``), uint8(0))
	f.Add(frame(`{"id":1,"method":"echo","fds":["a"]}`, `{}`), uint8(1))
	f.Add(frame(`{"id":1,"method":"echo","fds":["a","b"]}`, `{}`), uint8(1))
	f.Add(frame(`{"id":1,"method":"echo"}`, `{}`), uint8(200))
	f.Add(append(frame(`{"id":1,"method":"no","fds":["a","a"]}`, `{}`), frame(`{"id":1,"method":"echo","fds":[]}`, ``)...), uint8(3))
	f.Add(frame(`{"id":1,"cancel":true}`, `x`), uint8(2))
	f.Add(bytes.Repeat([]byte{0xff}, 20), uint8(5))
	null, err := os.Open(os.DevNull)
	if err != nil {
		f.Fatal(err)
	}
	defer null.Close()
	f.Fuzz(func(t *testing.T, data []byte, files uint8) {
		before := nulls(t)
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		var rights []byte
		if fds := slices.Repeat([]int{int(null.Fd())}, int(files)); len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		conn.(*net.UnixConn).WriteMsgUnix(data, rights, nil)
		conn.(*net.UnixConn).CloseWrite()
		io.Copy(io.Discard, conn)
		conn.Close()
		c, err := wire.Dial(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var got text
		if _, err := c.Call(t.Context(), "echo", text{"still here"}, &got); err != nil || got.S != "still here" {
			t.Errorf("after %q: %v, %v", data, got, err)
		}
		for end := time.Now().Add(time.Minute); nulls(t) > before; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d files of the call are open still", nulls(t)-before)
			}
		}
	})
}

// A closing handler closes the files of its calls, which Serve hands over to it.
type closing struct{ handler }

func (h closing) Call(ctx context.Context, from *wire.Conn, call *wire.Call) (any, []*os.File, error) {
	for _, f := range call.Files {
		f.Close()
	}
	return h.handler.Call(ctx, from, call)
}

// nulls returns how many descriptors of /dev/null this process has open.
func nulls(t *testing.T) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && to == os.DevNull {
			n++
		}
	}
	return n
}

// When Serve ends, so do its connections: a call that it accepted afterwards might get no
// answer, and its client would learn that late.
func TestServeEndsConnections(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	served := make(chan struct{})
	go func() {
		wire.Serve(l, handler{
			"echo": echo,
			"hang": func(context.Context, *wire.Conn, *wire.Call) (any, []*os.File, error) {
				l.Close()
				<-release
				return nil, nil, nil
			},
		}, slog.New(slog.DiscardHandler))
		close(served)
	}()
	c, err := wire.Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Call(t.Context(), "echo", text{"a"}, &text{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := c.Call(ctx, "hang", nil, nil); !errors.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
	close(release)
	<-served
	if _, ok := <-c.Events(); ok {
		t.Error("an event after the connection's end")
	}
}
