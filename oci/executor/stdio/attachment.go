package stdio

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
	"github.com/crisp-cri/crisp/oci/executor/gate"
	"github.com/crisp-cri/crisp/oci/executor/poll"
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

// Attach attaches a client, and returns the ends of the pipes that the client gets: those of the
// output, and of stdin if it types. tty says that the container has a terminal.
func (io *Streams) Attach(client int, stdin, tty bool, g *gate.Gate, log *slog.Logger) (theirs []*os.File, err error) {
	stdin = stdin && io.stdin != nil
	a := attaches(client, stdin || tty)
	defer func() {
		if err != nil {
			a.close()
			wire.CloseAll(theirs)
			theirs = nil
		}
	}()
	for _, o := range io.outs {
		client, ours, err := pipe(o.stream, false)
		if err != nil {
			return theirs, err
		}
		a.add(o.stream, ours, nil)
		theirs = append(theirs, client)
		poll.WithFD(ours, func(fd int) error {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, attachRoom)
			return err
		})
	}
	if stdin {
		client, ours, err := pipe(wire.FDStdin, true)
		if err != nil {
			return theirs, err
		}
		a.stdin = ours
		theirs = append(theirs, client)
	}
	for _, f := range theirs {
		poll.WithFD(f, func(fd int) error { return unix.SetNonblock(fd, true) })
	}
	if !io.begin(a, g, log) {
		return theirs, fault.WrongState.Errorf("container %s is not running", io.id)
	}
	return theirs, nil
}

// begin starts a, unless the container has ended.
func (io *Streams) begin(a *attachment, g *gate.Gate, log *slog.Logger) bool {
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
			gate.Retry(log, "stdin", io.id, func() { io.feed(a, g) })
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
			poll.Ready(f, 0)
			io.detach(a)
		}()
	}
	return true
}

// detach closes a client's output. Its input, if open, continues: `echo x | attach` must not
// lose the x because the output is not read. It is called outside the gate.
func (io *Streams) detach(a *attachment) {
	io.forget(a)
	a.closeOuts()
}

// forget is detach inside the gate; the caller calls closeOuts later.
func (io *Streams) forget(a *attachment) {
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
func (io *Streams) tee(o *output, p []byte) {
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

func (io *Streams) attachments() []*attachment {
	io.mu.Lock()
	defer io.mu.Unlock()
	return io.attached
}

// write writes as much of p as there is room for, and returns the rest.
func (a *attachment) write(stream string, p []byte) (rest []byte, err error) {
	err = poll.WithFD(a.outs[stream], func(fd int) (err error) {
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
func (io *Streams) hasBacklog(o *output) bool {
	return slices.ContainsFunc(io.attachments(), func(a *attachment) bool { return len(*a.backlog[o.stream]) > 0 })
}

// attachPatience is how long the container waits for a client that types but reads nothing; once
// the container has ended, it limits the total wait.
const attachPatience = 10 * time.Second

// settle waits, outside the gate, until the clients have read their backlogs of o. It drops
// clients that read nothing.
func (io *Streams) settle(o *output, g *gate.Gate) {
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
				g.Enter()
				defer g.Leave()
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
func (io *Streams) feed(a *attachment, g *gate.Gate) {
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
		g.Enter()
		defer g.Leave()
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
		g.Enter()
		defer g.Leave()
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
	if io.stdinOnce && !io.terminal() && !(eof && procstat.Ending(a.client)) {
		io.stdin.Close()
		if io.closed != nil {
			io.closed()
		}
	}
}

// terminal reports whether the container has a terminal.
func (io *Streams) terminal() bool { return len(io.outs) == 1 && io.outs[0].tty }

// A Saved is the stdio of a container in the state of an executor. Numbers are descriptors;
// -1 = none.
type Saved struct {
	Stdin, Stdout, Stderr, PTY, Log int
	Attached                        []SavedAttachment
	Typing                          []SavedAttachment `json:",omitempty"` // typing clients that no longer watch
}

// None is the stdio of a container that has ended.
var None = Saved{Stdin: -1, Stdout: -1, Stderr: -1, PTY: -1, Log: -1}

type SavedAttachment struct {
	Outs   map[string]int
	Stdin  int
	Typed  []byte
	Client int               `json:",omitempty"`
	Waits  bool              `json:",omitempty"`
	Owed   map[string][]byte `json:",omitempty"`
}

// Save returns what a successor needs. fd keeps a file open for it, and returns its number.
func (io *Streams) Save(fd func(*os.File) int) Saved {
	s := None
	s.PTY = fd(io.pty())
	if s.PTY < 0 {
		s.Stdin = fd(io.stdin)
	}
	for _, o := range io.outs {
		switch {
		case s.PTY >= 0:
		case o.stream == crilog.Stdout:
			s.Stdout = fd(o.file)
		default:
			s.Stderr = fd(o.file)
		}
	}
	if io.log != nil {
		s.Log = fd(io.log.File())
	}
	io.mu.Lock()
	defer io.mu.Unlock()
	for _, a := range io.attached {
		sa := a.save(fd)
		for stream, f := range a.outs {
			sa.Outs[stream], sa.Owed[stream] = fd(f), *a.backlog[stream]
		}
		s.Attached = append(s.Attached, sa)
	}
	for _, a := range io.typing {
		if !slices.Contains(io.attached, a) {
			s.Typing = append(s.Typing, a.save(fd))
		}
	}
	return s
}

// save returns the input side of a; the caller adds its outputs.
func (a *attachment) save(fd func(*os.File) int) SavedAttachment {
	return SavedAttachment{Outs: make(map[string]int), Stdin: fd(a.stdin), Typed: a.typed,
		Client: a.client, Waits: a.waits, Owed: make(map[string][]byte)}
}

// ResumeStreams continues what save returned. take makes a file of a number.
func ResumeStreams(c wire.Settings, s Saved, take func(fd int, name string) *os.File, g *gate.Gate, log *slog.Logger) *Streams {
	var w *crilog.Writer
	if s.Log >= 0 {
		w = crilog.Resume(take(s.Log, c.LogPath), c.LogPath, c.LogMaxLine, c.LogLimit, logTrouble(c.ID, log))
	}
	io := NewStreams(c, w, take(s.Stdin, wire.FDStdin), take(s.Stdout, wire.FDStdout),
		take(s.Stderr, wire.FDStderr), take(s.PTY, wire.FDPTY))
	for _, sa := range append(s.Attached, s.Typing...) {
		a := attaches(sa.Client, sa.Waits)
		a.stdin, a.typed = take(sa.Stdin, wire.FDStdin), sa.Typed
		for stream, n := range sa.Outs {
			a.add(stream, take(n, stream), sa.Owed[stream])
		}
		io.begin(a, g, log)
	}
	return io
}
