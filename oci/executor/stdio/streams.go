// Package stdio has the stdio of containers: pipes and terminals, the log, the clients that are
// attached, and what a successor of the executor takes over. It knows no container, only its name,
// and the gate behind which all output stands still.
package stdio

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
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/executor/gate"
	"github.com/crisp-cri/crisp/oci/executor/poll"
	"github.com/crisp-cri/crisp/oci/wire"
)

// Streams are the executor's side of a container's stdin, stdout and stderr, or of its terminal:
// output goes to the log and to attached clients, input from attached clients to its stdin.
type Streams struct {
	id        string         // of the container
	log       *crilog.Writer // nil = output is discarded
	stdin     *os.File       // nil if the container has none; the pty if it has one
	stdinOnce bool
	outs      []*output // stdout and stderr, or the pty alone
	buffers   *Buffers  // set by start
	closed    func()    // see OnStdinClosed; nil = nothing

	mu       sync.Mutex
	attached []*attachment // watching clients; guarded by mu
	typing   []*attachment // typing clients, watching or not; guarded by mu
	over     bool          // attaching is over; guarded by mu
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

// lastWords bounds how much is read after a container's exit from a pipe that a process outside
// keeps writing to.
const lastWords = 16 << 20 // bytes

func NewStreams(s wire.Settings, log *crilog.Writer, stdin, stdout, stderr, pty *os.File) *Streams {
	io := &Streams{id: s.ID, log: log, stdin: stdin, stdinOnce: s.StdinOnce}
	add := func(f *os.File, stream string, tty bool) {
		if f != nil {
			io.outs = append(io.outs, &output{file: f, stream: stream, tty: tty, done: make(chan struct{})})
		}
	}
	if pty != nil {
		io.stdin = pty
		add(pty, crilog.Stdout, true)
	}
	add(stdout, crilog.Stdout, s.TTY) // a shim's terminal has two FIFOs
	add(stderr, crilog.Stderr, false)
	return io
}

func (io *Streams) Start(g *gate.Gate, hs *Buffers, log *slog.Logger) {
	io.buffers = hs
	for _, o := range io.outs {
		go func() {
			defer close(o.done)
			if !gate.Retry(log, o.stream, io.id, func() { io.pump(o, g) }) {
				o.file.Close()
			}
		}()
	}
}

// pump reads o until its end, or until drain is called and nothing is left. It reads nothing
// while a client that it waits for has a backlog.
func (io *Streams) pump(o *output, g *gate.Gate) {
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
		g.Enter()
		io.log.Write(o.stream, []byte{'\r'}, nil) // nothing follows it
		g.Leave()
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
func (io *Streams) copy(fd int, o *output, g *gate.Gate) (total int, end bool) {
	g.Enter()
	defer g.Leave()
	h := io.buffers.take(io.id, o)
	defer io.buffers.put(h)
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
			if line := bytes.LastIndexByte(p, '\n') + 1; upto-line <= lineStart {
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
func (io *Streams) write(o *output, h *buffer, n int) {
	p := h.unlogged()[:n]
	if h.upto = n; n == 0 {
		return
	}
	if io.log == nil {
		h.Written(n)
		return
	}
	if o.tty {
		h.cr = o.cr
		p, o.cr = cooked(p, o.cr)
	}
	io.log.Write(o.stream, p, h)
}

// cooked returns what was written to a terminal that shows p. cr says that a \r precedes p; last
// reports a \r at the end of p, which is left out, as a \n may follow.
func cooked(p []byte, cr bool) (_ []byte, last bool) {
	if cr {
		p = append([]byte{'\r'}, p...)
	}
	p, last = bytes.CutSuffix(p, []byte{'\r'})
	return bytes.ReplaceAll(p, []byte("\r\n"), []byte("\n")), last // a copy
}

// rawLen returns how many bytes of p the first n bytes of cooked(p, cr) are, with a \r that is left out
// after them.
func rawLen(p []byte, cr bool, n int) (raw int) {
	if cr && n > 0 && p[0] != '\n' {
		n--
	}
	for ; n > 0 && raw < len(p); n-- {
		if bytes.HasPrefix(p[raw:], []byte("\r\n")) {
			raw++
		}
		raw++
	}
	if raw == len(p)-1 && p[raw] == '\r' {
		raw++
	}
	return raw
}

// Drain reads the rest of the pipes after the container's exit, and returns when the pumps have
// stopped. A process elsewhere that holds a pipe open does not delay it.
func (io *Streams) Drain() {
	for _, o := range io.outs {
		o.last.Store(true)
		o.file.SetReadDeadline(time.Unix(1, 0))
	}
	for _, o := range io.outs {
		<-o.done
	}
}

// End closes the log; after that clients cannot attach.
func (io *Streams) End() {
	io.mu.Lock()
	io.over = true
	io.mu.Unlock()
	if io.log != nil {
		io.log.Close()
	}
}

// Release closes everything else after end; attached clients see the end of the output. It waits
// for users of the files that may not have entered the gate yet, so it is called outside.
func (io *Streams) Release() {
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

// OnStdinClosed has f called, outside of the gate, when the container's stdin has been closed for the
// client that typed. It must be called before Start.
func (io *Streams) OnStdinClosed(f func()) { io.closed = f }

// Once reports whether stdin is closed with the first client that types.
func (io *Streams) Once() bool { return io.stdinOnce }

// AwaitEnd waits until the outputs have ended by themselves, but not after patience: a shim copies
// the output, and its last part comes after the exit of the program.
func (io *Streams) AwaitEnd(patience time.Duration) {
	late := time.After(patience)
	for _, o := range io.outs {
		select {
		case <-o.done:
		case <-late:
			return
		}
	}
}

// pty returns the terminal's master, or nil: a shim has its terminals itself.
func (io *Streams) pty() *os.File {
	if len(io.outs) == 1 && io.outs[0].tty && io.stdin == io.outs[0].file {
		return io.outs[0].file
	}
	return nil
}

// Duplicates returns the files that crispd keeps in case the executor dies, see wire.RunRequest.
func (io *Streams) Duplicates() (files []*os.File, err error) {
	add := func(f *os.File) {
		if f == nil || err != nil {
			return
		}
		var d *os.File
		if d, err = poll.Dup(f); err == nil {
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
	if err == nil {
		theirs[1], ours[1], err = pipe(wire.FDStdout, true)
	}
	if err == nil {
		theirs[2], ours[2], err = pipe(wire.FDStderr, true)
	}
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
	fd, err := unix.Openat(root, name, unix.O_RDWR|unix.O_CLOEXEC, 0)
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
	if ours, err = poll.File(p[0], name); err != nil {
		unix.Close(p[1])
		return nil, nil, err
	}
	return os.NewFile(uintptr(p[1]), name), ours, nil
}

// Resize sets the size of the terminal.
func (io *Streams) Resize(width, height uint16) error {
	pty := io.pty()
	if pty == nil {
		return fault.Invalid.Errorf("container %s has no terminal", io.id)
	}
	return resizeTerminal(pty, width, height)
}

func resizeTerminal(pty *os.File, width, height uint16) error {
	return poll.WithFD(pty, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width})
	})
}

// OpenLog opens a container's log, or returns nil if it has none.
func OpenLog(s wire.Settings, log *slog.Logger) (*crilog.Writer, error) {
	if s.LogPath == "" {
		return nil, nil
	}
	return crilog.Open(s.LogPath, s.LogMaxLine, s.LogLimit, logTrouble(s.ID, log))
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

// ReopenLog has the log reopened. An upgrade hands over the open file.
func (io *Streams) ReopenLog(g *gate.Gate) error {
	if io.log == nil {
		return nil
	}
	g.Enter()
	defer g.Leave()
	return io.log.Reopen()
}
