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

// A stdio is the executor's side of a container's stdin, stdout and stderr, or of its terminal:
// output goes to the log and to attached clients, input from attached clients to its stdin.
type stdio struct {
	id        string         // of the container
	log       *crilog.Writer // nil = output is discarded
	stdin     *os.File       // nil if the container has none; the pty if it has one
	stdinOnce bool
	outs      []*output // stdout and stderr, or the pty alone
	hands     *hands    // set by start

	mu       sync.Mutex
	attached []*attachment // watching clients; guarded by mu
	typing   []*attachment // typing clients, watching or not; guarded by mu
	over     bool          // nobody can attach any more; guarded by mu
}

// An output is one stream that the container writes to.
type output struct {
	file   *os.File // in the poller
	stream string   // its name in the log
	tty    bool
	cr     bool          // tty: a \r is held back; used by the pump
	late   time.Time     // how long to wait for clients after the end; used by the pump
	last   atomic.Bool   // the container has ended: only the rest of its output remains
	done   chan struct{} // closed when nothing more will be read
}

// chunk is how much is read from a container at once: the size of a pipe.
const chunk = 64 << 10

// lastWords bounds how much is read after a container's exit from a pipe to which somebody
// outside keeps writing.
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

// start starts reading.
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

// pump reads o until its end, or until drain is called and nothing is left. It reads nothing
// while a client that it waits for has a backlog.
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
	io.settle(o, g) // left by an upgrade
	for backlog = true; backlog; io.settle(o, g) {
		backlog = false
		// Read calls step when fd is readable, and returns once step returns true.
		if errors.Is(raw.Read(step), os.ErrDeadlineExceeded) {
			raw.Control(func(fd uintptr) { step(fd) })
		}
	}
	if o.cr && io.log != nil {
		g.enter()
		io.log.Write(o.stream, []byte{'\r'}, nil) // nothing follows it
		g.leave()
	}
}

// copy reads fd until it is empty or at its end, but at most some buffers full, and returns how
// much it read and whether it is at its end.
//
// A terminal's EIO means that no process in the container has it open at the moment: an init
// that has closed its stdio may open /dev/console again. It is the end only once the container
// has ended.
//
// A line cut at the end of the buffer, while more can be read, is joined with what follows; a
// line that merely has not continued yet is written as it is.
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
		p := h.unlogged()
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
	io.write(o, h, len(h.unlogged()))
	return total, end
}

// write appends the first n bytes of h to the log. A terminal turns \n into \r\n; the log has
// the \n.
func (io *stdio) write(o *output, h *hand, n int) {
	p := h.unlogged()[:n]
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

// cooked returns what was written to a terminal that shows p. cr says that a \r precedes p; last
// reports a \r at the end of p, which is left out, as a \n may follow.
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

// unwrapCR removes each \r before a \n, in place.
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

// drain reads the rest of the pipes after the container's exit, and returns when the pumps have
// stopped. A process elsewhere that holds a pipe open does not delay it.
func (io *stdio) drain() {
	for _, o := range io.outs {
		o.last.Store(true)
		o.file.SetReadDeadline(time.Unix(1, 0))
	}
	for _, o := range io.outs {
		<-o.done
	}
}

// end closes the log; after that nobody can attach.
func (io *stdio) end() {
	io.mu.Lock()
	io.over = true
	io.mu.Unlock()
	if io.log != nil {
		io.log.Close()
	}
}

// release closes everything else after end; attached clients see the end of the output. It waits
// for users of the files that may not have entered the gate yet, so it is called outside.
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

// closeStdin closes the container's input.
func (io *stdio) closeStdin() {
	if io.stdin != nil && len(io.outs) > 0 && io.stdin != io.outs[0].file {
		io.stdin.Close()
	}
}

// pty returns the terminal's master, or nil.
func (io *stdio) pty() *os.File {
	if len(io.outs) == 1 && io.outs[0].tty {
		return io.outs[0].file
	}
	return nil
}

// duplicates returns the files that crispd keeps in case the executor dies, see wire.RunRequest.
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

// pipes creates the stdio of a process without a terminal. The container's ends are blocking,
// ours are in the poller. Without wantStdin, stdin is /dev/null.
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

// openNull opens a /dev/null of a file system of its own. Through a descriptor of the host's, root
// in a container could change owner and mode of the host's, as they belong to the node.
func openNull() (*os.File, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, os.NewSyscallError("fsconfig", err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	defer unix.Close(root)
	const name = "dev/null" // what /proc/PID/fd shows
	if err := unix.Mkdirat(root, "dev", 0o755); err != nil {
		return nil, os.NewSyscallError("mkdirat", err)
	}
	if err := unix.Mknodat(root, name, unix.S_IFCHR, int(unix.Mkdev(1, 3))); err != nil {
		return nil, os.NewSyscallError("mknodat", err)
	}
	if err := unix.Fchmodat(root, name, 0o666, 0); err != nil {
		return nil, os.NewSyscallError("fchmodat", err)
	}
	fd, err := unix.Openat(root, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	return os.NewFile(uintptr(fd), os.DevNull), nil
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
