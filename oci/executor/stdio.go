package executor

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A stdio is the executor's side of a container's stdin, stdout and stderr, or of
// its terminal: what it writes goes to the log and to whoever is attached, what
// the attached write goes to its stdin.
type stdio struct {
	id        string         // of the container
	log       *crilog.Writer // nil = thrown away
	stdin     *os.File       // nil if the container has none; the pty if it has one
	stdinOnce bool
	outs      []*output // stdout and stderr, or the pty alone
	hands     *hands    // set by start

	mu       sync.Mutex
	attached []*attachment // that watch; guarded by mu
	typing   []*attachment // that type, watching or not; guarded by mu
	over     bool          // guarded by mu; nobody can attach any more
}

// An output is one stream that the container writes.
type output struct {
	file   *os.File // in the poller
	stream string   // as the log names it
	tty    bool
	cr     bool          // tty: a \r is held back; of the pump
	late   time.Time     // until when clients are waited for after the end; of the pump
	last   atomic.Bool   // the container has ended: only its last words remain
	done   chan struct{} // closed when nothing more will be read
}

// chunk is how much is read from a container at once: the size of a pipe.
const chunk = 64 << 10

// lastWords bounds what is still read after the end of a container from a pipe
// that somebody outside of it goes on writing to.
const lastWords = 16 << 20 // bytes

func newStdio(s settings, log *crilog.Writer, stdin, stdout, stderr, pty *os.File) *stdio {
	io := &stdio{id: s.ID, log: log, stdin: stdin, stdinOnce: s.StdinOnce}
	add := func(f *os.File, stream string, tty bool) {
		if f != nil {
			io.outs = append(io.outs, &output{file: f, stream: stream, tty: tty, done: make(chan struct{})})
		}
	}
	if pty != nil {
		io.stdin = pty
		add(pty, crilog.Stdout, true)
	}
	add(stdout, crilog.Stdout, false)
	add(stderr, crilog.Stderr, false)
	return io
}

// start begins to read.
func (io *stdio) start(g *gate, hs *hands, log *slog.Logger) {
	io.hands = hs
	for _, o := range io.outs {
		go func() {
			defer close(o.done)
			if !insist(log, o.stream, io.id, func() { io.pump(o, g) }) {
				o.file.Close()
			}
		}()
	}
}

// pump reads o until its end, or until drain is called and nothing is left. It reads
// nothing while a client that it waits for has a backlog.
func (io *stdio) pump(o *output, g *gate) {
	raw, err := o.file.SyscallConn()
	if err != nil {
		return
	}
	last, backlog := 0, false
	step := func(fd uintptr) bool {
		for {
			n, end := io.copy(int(fd), o, g)
			if o.last.Load() {
				last += n
			}
			backlog = io.hasBacklog(o) && last <= lastWords
			switch {
			case end || backlog || last > lastWords:
				return true
			case n == 0:
				return false
			}
		}
	}
	io.settle(o, g) // what an upgrade has left
	for backlog = true; backlog; io.settle(o, g) {
		backlog = false
		// Read calls step when there is something, and returns when step says so.
		if errors.Is(raw.Read(step), os.ErrDeadlineExceeded) {
			raw.Control(func(fd uintptr) { step(fd) })
		}
	}
	if o.cr && io.log != nil {
		g.enter()
		io.log.Write(o.stream, []byte{'\r'}, nil) // nothing comes after it
		g.leave()
	}
}

// copy reads fd until it is dry or has ended, but no more than some buffers full,
// and returns how much that was and whether it has ended.
//
// A terminal's EIO says that no process in the container has it open at the moment: an init
// that has closed its stdio may open /dev/console again. It is the end only once the container
// has ended.
//
// A line that is cut by the end of the buffer, while more is there to be read, is
// joined with what follows; one that just has not gone on yet is written as it is.
func (io *stdio) copy(fd int, o *output, g *gate) (total int, end bool) {
	g.enter()
	defer g.leave()
	h := io.hands.take(io.id, o)
	defer io.hands.put(h)
	for total < 16*chunk {
		n, err := h.read(fd, total > 0)
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			end = err != unix.EAGAIN && !(err == unix.EIO && o.tty && !o.last.Load())
			break
		}
		total += n
		p := h.held()
		io.tee(o, p[len(p)-n:])
		upto := len(p)
		if h.full() {
			if line := bytes.LastIndexByte(p, '\n') + 1; upto-line <= handed {
				upto = line // else the line is too long to be kept together
			}
		}
		io.write(o, h, upto)
		h.keep()
		if io.hasBacklog(o) {
			break
		}
	}
	io.write(o, h, len(h.held()))
	return total, end
}

// write appends the first n bytes of h to the log. A terminal turns \n into \r\n; the
// log has the \n.
func (io *stdio) write(o *output, h *hand, n int) {
	p := h.held()[:n]
	if h.upto = n; n == 0 {
		return
	}
	if io.log == nil {
		h.Written()
		return
	}
	if o.tty {
		p, o.cr = cooked(p, o.cr)
	}
	io.log.Write(o.stream, p, h)
}

// cooked is what a terminal was given that has written p; cr tells of a \r before it, and
// then of one that ends it and is not yet written: the \n may come next.
func cooked(p []byte, cr bool) (_ []byte, last bool) {
	out := make([]byte, 0, len(p)+1)
	if cr {
		out = append(out, '\r')
	}
	out = append(out, p...)
	if last = out[len(out)-1] == '\r'; last {
		out = out[:len(out)-1]
	}
	return unwrapCR(out), last
}

// unwrapCR removes each \r that stands before a \n, in place.
func unwrapCR(p []byte) []byte {
	out := p[:0]
	for i, b := range p {
		if b == '\r' && i+1 < len(p) && p[i+1] == '\n' {
			continue
		}
		out = append(out, b)
	}
	return out
}

// drain reads the rest of the pipes after the container's end, and returns when the pumps have
// stopped. A process elsewhere that holds a pipe open delays nothing.
func (io *stdio) drain() {
	for _, o := range io.outs {
		o.last.Store(true)
		o.file.SetReadDeadline(time.Unix(1, 0))
	}
	for _, o := range io.outs {
		<-o.done
	}
}

// end closes the log; from then on nobody can attach.
func (io *stdio) end() {
	io.mu.Lock()
	io.over = true
	io.mu.Unlock()
	if io.log != nil {
		io.log.Close()
	}
}

// release lets go of everything else after end; those attached see the end of the
// output. It waits for what is being done with the files, which may have yet to enter
// the gate: so it is called outside.
func (io *stdio) release() {
	io.mu.Lock()
	all := append(io.attached, io.typing...)
	io.attached = nil
	io.mu.Unlock()
	for _, a := range all {
		a.close()
	}
	if io.stdin != nil {
		io.stdin.Close()
	}
	for _, o := range io.outs {
		o.file.Close()
	}
}

// closeStdin gives the container the end of its input.
func (io *stdio) closeStdin() {
	if io.stdin != nil && len(io.outs) > 0 && io.stdin != io.outs[0].file {
		io.stdin.Close()
	}
}

// pty is the terminal's master, or nil.
func (io *stdio) pty() *os.File {
	if len(io.outs) == 1 && io.outs[0].tty {
		return io.outs[0].file
	}
	return nil
}

// duplicates are what crispd keeps against the executor's death, see
// wire.RunRequest.
func (io *stdio) duplicates() (files []*os.File, err error) {
	add := func(f *os.File) {
		if f == nil || err != nil {
			return
		}
		var d *os.File
		if d, err = dup(f); err == nil {
			files = append(files, d)
		}
	}
	if io.pty() == nil && !io.stdinOnce {
		add(io.stdin)
	}
	for _, o := range io.outs {
		add(o.file)
	}
	if err != nil {
		wire.CloseAll(files)
		return nil, err
	}
	return files, nil
}

// pipes makes the stdio of a process without a terminal. The container's ends are
// blocking, ours are in the poller. Without wantStdin, it is /dev/null.
func pipes(wantStdin bool) (theirs [3]*os.File, ours [3]*os.File, err error) {
	defer func() {
		if err != nil {
			wire.CloseAll(theirs[:])
			wire.CloseAll(ours[:])
		}
	}()
	if wantStdin {
		theirs[0], ours[0], err = pipe(wire.FDStdin, false)
	} else {
		theirs[0], err = os.Open(os.DevNull)
	}
	if err != nil {
		return theirs, ours, err
	}
	if theirs[1], ours[1], err = pipe(wire.FDStdout, true); err != nil {
		return theirs, ours, err
	}
	theirs[2], ours[2], err = pipe(wire.FDStderr, true)
	return theirs, ours, err
}

// pipe returns the container's end and ours, which reads if reads is set.
func pipe(name string, reads bool) (theirs, ours *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	if !reads {
		p[0], p[1] = p[1], p[0]
	}
	if ours, err = polled(p[0], name); err != nil {
		unix.Close(p[1])
		return nil, nil, err
	}
	return os.NewFile(uintptr(p[1]), name), ours, nil
}
