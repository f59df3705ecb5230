package server

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A program that resets its connection, as one that crashes or closes it with unread data does,
// ends only this connection: clients end the whole session after an error.
func TestForwardToAProgramThatResets(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	program, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	client, rw := net.Pipe()
	joined := make(chan error, 1)
	go func() { joined <- join(t.Context(), conn, rw) }()
	if _, err := client.Write([]byte("request")); err != nil {
		t.Fatal(err)
	}
	if _, err := program.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	program.(*net.TCPConn).SetLinger(0)
	program.Close()
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the client got %v, want the end", err)
	}
	client.Close()
	if err := <-joined; err != nil {
		t.Errorf("the session got %v", err)
	}
}

// asked is a client's stream that has ended: it sends nothing more, and reads responses.
type asked struct{ answers chan string }

func (a asked) Read([]byte) (int, error)    { return 0, io.EOF }
func (a asked) Write(p []byte) (int, error) { a.answers <- string(p); return len(p), nil }
func (a asked) Close() error                { close(a.answers); return nil }

// A client that is slow to read the responses gets them all: only a silent program counts as hung.
func TestForwardToAClientThatIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, program := net.Pipe()
		client := asked{make(chan string)}
		joined := make(chan error, 1)
		go func() { joined <- join(t.Context(), conn, client) }()
		go func() {
			for range 3 {
				program.Write([]byte("answer"))
			}
			program.Close()
		}()
		heard := 0
		for range client.answers {
			heard++
			time.Sleep(answerTime + time.Second)
		}
		if err := <-joined; err != nil || heard != 3 {
			t.Errorf("heard %d answers of 3, %v", heard, err)
		}
	})
}

// A program that ignores the end of its input does not keep a connection whose client has gone.
// While it sends responses it may take its time.
func TestForwardToAProgramThatIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, program := net.Pipe()
		client := asked{make(chan string)}
		joined := make(chan error, 1)
		go func() { joined <- join(t.Context(), conn, client) }()
		go func() {
			for range 3 {
				time.Sleep(answerTime - 1)
				program.Write([]byte("still here"))
			}
		}()
		heard := 0
		for range client.answers {
			heard++
		}
		if err := <-joined; err != nil || heard != 3 {
			t.Errorf("heard %d answers of 3, %v", heard, err)
		}
		if _, err := program.Write([]byte("late")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the program got %v, want the end", err)
		}
	})
}
