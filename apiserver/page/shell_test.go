package page

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/websocket"
	"k8s.io/client-go/tools/remotecommand"
)

// A fakeExec is a command.
type fakeExec func(remotecommand.StreamOptions) error

func (f fakeExec) Stream(o remotecommand.StreamOptions) error { return f(o) }

func (f fakeExec) StreamWithContext(_ context.Context, o remotecommand.StreamOptions) error {
	return f(o)
}

// browse runs a command in a session, and returns the browser's end of it. The session has ended
// when ended is closed.
func browse(t *testing.T, command fakeExec) (ws *websocket.Conn, ended chan struct{}) {
	t.Helper()
	ended = make(chan struct{})
	server := httptest.NewServer(websocket.Handler(func(ws *websocket.Conn) {
		defer close(ended)
		newSession(ws).run(t.Context(), command)
	}))
	t.Cleanup(server.Close)
	ws, err := websocket.Dial(strings.Replace(server.URL, "http", "ws", 1), "", server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ws.Close() })
	return ws, ended
}

func receive(t *testing.T, ws *websocket.Conn) []byte {
	t.Helper()
	var b []byte
	if err := websocket.Message.Receive(ws, &b); err != nil {
		t.Fatal(err)
	}
	return b
}

// A command gets what is typed and the newest size, and its output loses only characters that
// change the direction of text.
func TestShell(t *testing.T) {
	ws, ended := browse(t, func(o remotecommand.StreamOptions) error {
		size := o.TerminalSizeQueue.Next()
		typed := make([]byte, 6)
		if _, err := io.ReadFull(o.Stdin, typed); err != nil {
			return err
		}
		fmt.Fprintf(o.Stdout, "%dx%d %s \x1b[31m漢\u202e\xff\u200d", size.Width, size.Height, typed)
		if again := o.TerminalSizeQueue.Next(); *again != (remotecommand.TerminalSize{Width: maxSide, Height: 1}) {
			return fmt.Errorf("the second size is %v", *again)
		}
		return errors.New("code \x1b 3")
	})
	for _, m := range []string{`{"size": [100, 30]}`, `{"text": "ab"}`, `{"text": "cdé"}`} {
		if err := websocket.Message.Send(ws, m); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := string(receive(t, ws)), "100x30 abcdé \x1b[31m漢\ufffd\u200d"; got != want {
		t.Errorf("the output is %q, want %q", got, want)
	}
	if err := websocket.Message.Send(ws, `{"size": [99999, -1]}`); err != nil {
		t.Fatal(err)
	}
	if got, want := string(receive(t, ws)), "The command has ended: code ␛ 3"; got != want {
		t.Errorf("the end is %q, want %q", got, want)
	}
	<-ended
}

// A command waits for a browser that shows nothing, and goes on when it does.
func TestShellWaitsForBrowser(t *testing.T) {
	const piece, pieces = 32 << 10, 64
	var shown atomic.Int64
	ws, ended := browse(t, func(o remotecommand.StreamOptions) error {
		for i := range int64(pieces) {
			if _, err := o.Stdout.Write(bytes.Repeat([]byte{'a' + byte(i%26)}, piece)); err != nil {
				return err
			}
			if ahead := (i+1)*piece - shown.Load(); ahead > maxUnread+piece {
				t.Errorf("the command is %d bytes ahead of the browser", ahead)
			}
		}
		return nil
	})
	var got int64
	for got < piece*pieces {
		b := receive(t, ws)
		if want := 'a' + byte(got/piece%26); b[0] != want {
			t.Fatalf("byte %d is %c, want %c", got, b[0], want)
		}
		if got += int64(len(b)); got%maxUnread == 0 {
			shown.Store(got)
			if err := websocket.JSON.Send(ws, map[string]int{"read": maxUnread}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := string(receive(t, ws)); got != "The command has ended." {
		t.Errorf("the end is %q", got)
	}
	<-ended
}

// A command that waits for a browser ends when the browser disconnects.
func TestShellWithoutBrowser(t *testing.T) {
	waits := make(chan error, 1)
	ws, ended := browse(t, func(o remotecommand.StreamOptions) error {
		for {
			if _, err := o.Stdout.Write(make([]byte, 32<<10)); err != nil {
				waits <- err
				return err
			}
		}
	})
	for got := 0; got < maxUnread; {
		got += len(receive(t, ws))
	}
	ws.Close()
	if err := <-waits; !errors.Is(err, context.Canceled) {
		t.Errorf("the command's output ends with %v", err)
	}
	<-ended
}
