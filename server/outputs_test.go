package server

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A slow writer takes its time for each piece.
type slowWriter struct {
	bytes.Buffer
	pause time.Duration
}

func (w *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(w.pause)
	return w.Buffer.Write(p)
}

// All output of a command arrives, even if its client is slow and a process that it left behind
// keeps the pipe open. The output of that process is not awaited.
func TestOutputOfAnEndedCommand(t *testing.T) {
	t.Parallel() // it waits for drainTime
	for name, test := range map[string]struct {
		pause       time.Duration
		left, chats bool // a process is left, and continues to write
	}{
		"ends":             {0, false, false},
		"slow client":      {drainTime / 2, false, false},
		"left":             {0, true, false},
		"left, slow":       {drainTime / 2, true, false},
		"left, chats":      {0, true, true},
		"left, chats slow": {drainTime / 2, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var fds [2]int
			if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
				t.Fatal(err)
			}
			r, w := os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe")
			defer r.Close()
			to := &slowWriter{pause: test.pause}
			var o outputs
			o.copy(to, r)
			// Five reads of 32 KiB: more than a pipe has room for.
			text := strings.Repeat("what the command says\n", 160<<10/22)
			if _, err := w.WriteString(text); err != nil {
				t.Fatal(err)
			}
			enough := make(chan struct{})
			defer close(enough)
			switch {
			case !test.left:
				w.Close()
			case test.chats:
				go func() {
					defer w.Close()
					for {
						select {
						case <-enough:
							return
						case <-time.After(drainTime / 20):
							w.SetWriteDeadline(time.Now().Add(drainTime / 20))
							w.WriteString("and on\n")
						}
					}
				}()
			default:
				defer w.Close()
			}
			o.drain()
			got, rest := to.String(), ""
			if len(got) > len(text) {
				got, rest = got[:len(text)], got[len(text):]
			}
			if got != text {
				t.Errorf("%d of %d bytes have arrived", len(got), len(text))
			}
			if strings.Trim(rest, "ando \n") != "" || len(rest) > 10_000 || (rest != "") != test.chats && test.pause == 0 {
				t.Errorf("beyond that: %d bytes, %.40q", len(rest), rest)
			}
		})
	}
}

// The output of a command that closes its terminal and opens it again is still read. Once the
// command has ended, no more output is awaited.
func TestOutputOfATerminalOpenedAgain(t *testing.T) {
	t.Parallel() // it waits for the time that an output has to end
	pty, name := newPTY(t)
	to := &slowWriter{}
	var o outputs
	o.copy(to, pty)
	for _, text := range []string{"before\n", "later\n"} {
		tty, err := os.OpenFile(name, os.O_WRONLY|unix.O_NOCTTY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tty.WriteString(text); err != nil {
			t.Fatal(err)
		}
		for pending(pty) > 0 { // otherwise two writes may arrive together
			time.Sleep(time.Millisecond)
		}
		tty.Close()
		time.Sleep(20 * time.Millisecond) // for a reader that mistakes this for the end
	}
	o.drain()
	if got := to.String(); got != "before\r\nlater\r\n" {
		t.Errorf("got %q", got)
	}
}

// The output of a command with a terminal ends with the command, also if its reader has seen the
// terminal closed before: it does not wait as long as for what a command leaves behind.
func TestOutputOfAClosedTerminalEndsAtOnce(t *testing.T) {
	t.Parallel() // it waits for drainTime
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	var left, closed outputs // left has a writer still
	left.copy(nil, r)
	pty, name := newPTY(t)
	closed.copy(nil, pty)
	tty, err := os.OpenFile(name, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	tty.Close()
	waited := make(chan struct{})
	go func() {
		left.drain()
		close(waited)
	}()
	time.Sleep(drainTime / 2) // now left ends before whoever waits as long
	closed.drain()
	select {
	case <-waited:
		t.Error("it waited for a terminal that is closed")
	default:
		<-waited
	}
}

// newPTY returns the master of a new terminal, as an executor gives it, and the name of the
// other end.
func newPTY(t *testing.T) (master *os.File, name string) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skipf("needs /dev/ptmx: %v", err)
	}
	master = os.NewFile(uintptr(fd), "pty")
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	return master, fmt.Sprintf("/dev/pts/%d", n)
}
