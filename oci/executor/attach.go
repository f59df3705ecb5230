package executor

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/procstat"
	"github.com/crisp-cri/crisp/oci/wire"
)

// An attachment is one client that watches a container and may type into it.
type attachment struct {
	outs  map[string]*os.File // stream → the write end of its pipe
	stdin *os.File            // the read end of the client's input, or nil
	typed []byte              // read from stdin, not yet written: only changed inside the gate
	once  sync.Once

	client int // process that attached; 0 = not visible from here
	// waits is set if the container waits for a slow client: one that types, not one that only
	// watches. backlog then holds, by stream, output that was read and logged but not yet
	// written: only the stream's pump changes it, inside the gate.
	waits   bool
	backlog map[string]*[]byte
}

// attaches returns an attachment without streams.
func attaches(client int, waits bool) *attachment {
	return &attachment{outs: make(map[string]*os.File), backlog: make(map[string]*[]byte), client: client, waits: waits}
}

// add adds an output stream to a.
func (a *attachment) add(stream string, f *os.File, backlog []byte) {
	a.outs[stream], a.backlog[stream] = f, &backlog
}

func (a *attachment) close() {
	a.once.Do(func() {
		a.closeOuts()
		if a.stdin != nil {
			a.stdin.Close()
		}
	})
}

// attachRoom is how far a client may fall behind before it is dropped, or waited for. The kernel
// uses memory only for data in the pipe (pipe(7); a lower limit of the user is accepted).
const attachRoom = 1 << 20 // bytes

// attach serves wire.AttachRequest.
func (x *Executor) attach(from *wire.Conn, req wire.AttachRequest) ([]*os.File, error) {
	c, err := x.table.runs(req.ID)
	if err != nil {
		return nil, err
	}
	stdin := req.Stdin && c.Stdin && c.io.stdin != nil
	a := attaches(from.Pid(), stdin || c.TTY)
	var theirs []*os.File
	fail := func(err error) ([]*os.File, error) {
		a.close()
		wire.CloseAll(theirs)
		return nil, err
	}
	for _, o := range c.io.outs {
		client, ours, err := pipe(o.stream, false)
		if err != nil {
			return fail(err)
		}
		a.add(o.stream, ours, nil)
		theirs = append(theirs, client)
		withFD(ours, func(fd int) error {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, attachRoom)
			return err
		})
	}
	if stdin {
		client, ours, err := pipe(wire.FDStdin, true)
		if err != nil {
			return fail(err)
		}
		a.stdin = ours
		theirs = append(theirs, client)
	}
	for _, f := range theirs {
		withFD(f, func(fd int) error { return unix.SetNonblock(fd, true) })
	}
	if !c.io.attach(a, &x.gate, x.log) {
		return fail(fault.WrongState.Errorf("container %s is not running", c.ID))
	}
	return theirs, nil
}

// attach starts a, unless the container has ended.
func (io *stdio) attach(a *attachment, g *gate, log *slog.Logger) bool {
	io.mu.Lock()
	defer io.mu.Unlock()
	if io.over {
		return false
	}
	if len(a.outs) > 0 {
		io.attached = append(io.attached, a)
	}
	if a.stdin != nil {
		io.typing = append(io.typing, a)
		go func() {
			insist(log, "stdin", io.id, func() { io.feed(a, g) })
			a.stdin.Close()
			io.mu.Lock()
			io.typing = without(io.typing, a)
			io.mu.Unlock()
		}()
	}
	for _, f := range a.outs {
		go func() {
			// Poll reports POLLERR for a pipe without a reader: a client that has left should
			// not be kept until the next output.
			ready(f, 0)
			io.detach(a)
		}()
	}
	return true
}

// detach closes a client's output. Its input, if open, continues: `echo x | attach` must not
// lose the x because the output is not read. It is called outside the gate.
func (io *stdio) detach(a *attachment) {
	io.forget(a)
	a.closeOuts()
}

// forget is detach inside the gate; the caller calls closeOuts later.
func (io *stdio) forget(a *attachment) {
	io.mu.Lock()
	defer io.mu.Unlock()
	io.attached = without(io.attached, a)
}

// closeOuts waits for pumps that are about to write to the outputs and may not have entered the
// gate yet.
func (a *attachment) closeOuts() {
	for _, f := range a.outs {
		f.Close()
	}
}

// without returns a copy of list without one; loops over the old list are not affected.
func without(list []*attachment, one *attachment) []*attachment {
	return slices.DeleteFunc(slices.Clone(list), func(a *attachment) bool { return a == one })
}

// tee sends p to all attachments. One whose pipe is full is dropped or, if the container waits
// for it, keeps the rest of p as its backlog.
func (io *stdio) tee(o *output, p []byte) {
	for _, a := range io.attachments() {
		rest, err := a.write(o.stream, p)
		switch {
		case err == nil:
		case err == unix.EAGAIN && a.waits:
			*a.backlog[o.stream] = bytes.Clone(rest)
		default:
			io.forget(a)
			go a.closeOuts()
		}
	}
}

func (io *stdio) attachments() []*attachment {
	io.mu.Lock()
	defer io.mu.Unlock()
	return io.attached
}

// write writes as much of p as there is room for, and returns the rest.
func (a *attachment) write(stream string, p []byte) (rest []byte, err error) {
	err = withFD(a.outs[stream], func(fd int) (err error) {
		p, err = writeOut(fd, p)
		return err
	})
	return p, err
}

func writeOut(fd int, p []byte) (rest []byte, err error) {
	for len(p) > 0 {
		n, err := unix.Write(fd, p)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return p, err
		default:
			p = p[n:]
		}
	}
	return nil, nil
}

// hasBacklog reports whether a client must read some of o before more of o is read.
func (io *stdio) hasBacklog(o *output) bool {
	return slices.ContainsFunc(io.attachments(), func(a *attachment) bool { return len(*a.backlog[o.stream]) > 0 })
}

// attachPatience is how long the container waits for a client that types but reads nothing; once
// the container has ended, it limits the total wait.
const attachPatience = 10 * time.Second

// settle waits, outside the gate, until the clients have read their backlogs of o. It drops
// clients that read nothing.
func (io *stdio) settle(o *output, g *gate) {
	for _, a := range io.attachments() {
		backlog, f := a.backlog[o.stream], a.outs[o.stream]
		raw, err := f.SyscallConn()
		for err == nil && len(*backlog) > 0 {
			until := time.Now().Add(attachPatience)
			if o.last.Load() {
				if o.late.IsZero() {
					o.late = until
				}
				until = o.late
			}
			f.SetWriteDeadline(until)
			var werr error
			err = raw.Write(func(fd uintptr) bool {
				g.enter()
				defer g.leave()
				before := len(*backlog)
				*backlog, werr = writeOut(int(fd), *backlog)
				return werr != unix.EAGAIN || len(*backlog) < before
			})
			if werr != unix.EAGAIN {
				err = errors.Join(err, werr)
			}
		}
		if err != nil {
			io.detach(a)
		}
	}
}

// feed copies a client's input to the container until the client closes its end; with stdinOnce
// this closes the container's input.
func (io *stdio) feed(a *attachment, g *gate) {
	from, err := a.stdin.SyscallConn()
	if err != nil {
		return
	}
	to, err := io.stdin.SyscallConn()
	if err != nil {
		return
	}
	eof, broken := false, false
	take := func(fd uintptr) bool {
		g.enter()
		defer g.leave()
		buf := make([]byte, 4<<10)
		n, err := unix.Read(int(fd), buf)
		if err == unix.EAGAIN || err == unix.EINTR {
			return false
		}
		eof = n <= 0
		a.typed = buf[:max(n, 0)]
		return true
	}
	give := func(fd uintptr) bool {
		g.enter()
		defer g.leave()
		for len(a.typed) > 0 {
			n, err := unix.Write(int(fd), a.typed)
			switch err {
			case nil:
				a.typed = a.typed[n:]
			case unix.EINTR:
			case unix.EAGAIN:
				return false
			default:
				broken = true // the container has closed it, or ended
				return true
			}
		}
		return true
	}
	for !eof && !broken {
		if to.Write(give) != nil || broken || from.Read(take) != nil {
			break
		}
	}
	// When crispd exits, all its pipes are closed, but its clients may come back to the next
	// crispd. An upgrade before this point hands over the client's end, and the end of file.
	if io.stdinOnce && !(eof && exiting(a.client)) {
		io.closeStdin()
	}
}

// exiting reports whether a process has exited or is about to: the kernel then closes its files
// (the last thread does, after the first has begun to exit or is a zombie).
func exiting(pid int) bool {
	if pid == 0 {
		return false
	}
	stat, err := procstat.Read(pid)
	return err != nil || stat.Ended() || stat.Exiting()
}

// resize serves wire.ResizeRequest.
func (x *Executor) resize(req wire.ResizeRequest) error {
	c, err := x.table.runs(req.ID)
	if err != nil {
		return err
	}
	pty := c.io.pty()
	if pty == nil {
		return fault.Invalid.Errorf("container %s has no terminal", c.ID)
	}
	return withFD(pty, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: req.Height, Col: req.Width})
	})
}

// reopenLog serves MethodReopenLog. It does not wait for a stop in progress: a stopping
// container runs until it has ended.
func (x *Executor) reopenLog(id string) error {
	c, err := x.table.runs(id)
	if err != nil {
		return err
	}
	if c.io.log == nil {
		return nil
	}
	x.gate.enter() // an upgrade hands over the open file
	defer x.gate.leave()
	return c.io.log.Reopen()
}

// openLog opens a container's log, or returns nil if it has none.
func openLog(s settings, log *slog.Logger) (*crilog.Writer, error) {
	if s.LogPath == "" {
		return nil, nil
	}
	w, err := crilog.Open(s.LogPath, s.LogMaxLine, logTrouble(s.ID, log))
	if err != nil {
		return nil, err
	}
	return w, nil
}

// logTrouble returns the function that a container's log reports to.
func logTrouble(id string, log *slog.Logger) func(error, int64) {
	return func(err error, lost int64) {
		if err != nil {
			log.Warn("container output is being lost", "container", id, "err", err)
			return
		}
		log.Warn("container output was lost", "container", id, "bytes", lost)
	}
}
