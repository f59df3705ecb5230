package server

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// drainTime is how long to wait for more output once a command has ended. The wait takes this
// long only if a process that the command left behind holds its pipes open.
const drainTime = 2 * time.Second

// outputs are the streams of a command on their way to its client. The zero value is
// ready.
type outputs struct {
	copying sync.WaitGroup
	from    []*os.File
	until   atomic.Pointer[time.Time] // when to stop waiting for more; nil: the command runs
}

// copy copies a stream of a command until it ends. Without a client it still reads, or the
// command would block.
func (o *outputs) copy(to io.Writer, from *os.File) {
	if from == nil {
		return
	}
	if to == nil {
		to = io.Discard
	}
	o.from = append(o.from, from)
	o.copying.Go(func() {
		buf := make([]byte, 32<<10)
		unread := 0 // bytes the command itself left unread; known once it has ended
		for ended := false; ; {
			until := o.until.Load()
			if until != nil && !ended {
				ended, unread = true, pending(from)
			}
			switch {
			case unread > 0: // they are available, however long the client took for those before
				from.SetReadDeadline(time.Time{})
			case ended:
				from.SetReadDeadline(*until)
			}
			n, err := o.read(from, buf)
			unread -= n
			if n > 0 { // some clients treat an empty write as a message
				if _, werr := to.Write(buf[:n]); werr != nil {
					to = io.Discard // the client has gone
				}
			}
			late := errors.Is(err, os.ErrDeadlineExceeded)
			if err != nil && !(late && !ended) {
				return
			}
		}
	})
}

// read reads from a stream. A terminal returns EIO while no process has it open. That is the end
// of the output only once the command has ended; until then it may open the terminal again.
func (o *outputs) read(from *os.File, buf []byte) (n int, err error) {
	raw, err := from.SyscallConn()
	if err != nil {
		return 0, err
	}
	rerr := raw.Read(func(fd uintptr) bool {
		for {
			if n, err = unix.Read(int(fd), buf); err != unix.EINTR {
				break
			}
		}
		return err != unix.EAGAIN && (err != unix.EIO || o.until.Load() != nil)
	})
	switch {
	case rerr != nil:
		return 0, rerr
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// pending returns how many bytes are in a pipe or terminal (FIONREAD, which is TIOCINQ:
// ioctl_tty(2), pipe(7)).
func pending(f *os.File) (n int) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	if err != nil {
		return 0
	}
	return n
}

// drain waits for all output of a command that has ended, however slow the client is. A process
// left behind may hold the pipes open; its output is waited for no longer than drainTime.
func (o *outputs) drain() {
	// This wakes the readers: one that has seen its terminal closed would wait until it is opened
	// again. They set all later deadlines themselves.
	for _, f := range o.from {
		f.SetReadDeadline(time.Now())
	}
	until := time.Now().Add(drainTime)
	o.until.Store(&until)
	o.copying.Wait()
}
