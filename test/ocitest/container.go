package ocitest

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
)

// A container is a container of the fake executor. The executor's lock guards
// it.
type container struct {
	req     wire.RunRequest
	reply   wire.RunReply
	ownPIDs bool
	init    *process
	procs   []*process // init and all others
	exit    *wire.Exit // what the executor has recorded
	endedAt time.Time  // of init
	lost    bool       // its exit code cannot be determined
	kills   int64      // OOM kills, as the kernel counts them
	stdin   *io.PipeWriter
	input   *io.PipeReader

	mu       sync.Mutex // of the output
	attached []*stdio   // guarded by mu
}

func newContainer(req wire.RunRequest, spec *specs.Spec) *container {
	c := &container{req: req}
	if spec.Linux != nil {
		for _, ns := range spec.Linux.Namespaces {
			c.ownPIDs = c.ownPIDs || ns.Type == specs.PIDNamespace && ns.Path == ""
		}
	}
	if req.Stdin {
		c.input, c.stdin = io.Pipe()
	}
	return c
}

// fork starts a process in the container.
func (c *container) fork(args []string) *process {
	var in io.Reader
	if c.input != nil {
		in = c.input
	}
	p := newProcess(c.print, in, func(script []string) { c.fork(append([]string{"testbin"}, script...)) })
	c.mu.Lock()
	c.procs = append(c.procs, p)
	c.mu.Unlock()
	go p.runScript(args)
	return p
}

func (c *container) signal(sig unix.Signal, all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.procs {
		if all || p == c.init {
			p.signal(sig)
		}
	}
}

func (c *container) alive() int {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, p := range c.procs {
		if !p.ended() {
			n++
		}
	}
	return n
}

// print writes a line to the log and to attached clients.
func (c *container) print(stream, line string) {
	if c.req.TTY {
		stream = "stdout"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.req.LogPath != "" {
		f, err := os.OpenFile(c.req.LogPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
		if err == nil {
			fmt.Fprintf(f, "%s %s F %s\n", time.Now().Format(time.RFC3339Nano), stream, line)
			f.Close()
		}
	}
	for _, s := range c.attached {
		s.print(stream, line)
	}
}

func (c *container) attach(s *stdio) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attached = append(c.attached, s)
}

// detach closes the output of attached clients.
func (c *container) detach() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.attached {
		s.closeOutput()
	}
	c.attached = nil
}

func (c *container) closeAttached() {
	c.detach()
	if c.stdin != nil {
		c.stdin.Close()
		c.input.Close()
	}
}

// stdio is a process's end of three pipes, or of a socket in place of a
// terminal.
type stdio struct {
	stdin, stdout, stderr *os.File
	theirs                []*os.File
}

func newStdio(stdin, tty bool) (_ *stdio, err error) {
	s := &stdio{}
	defer func() {
		if err != nil {
			s.close()
			wire.CloseAll(s.theirs)
		}
	}()
	if tty {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		s.stdout = os.NewFile(uintptr(fds[0]), "tty")
		s.stdin = s.stdout
		s.theirs = []*os.File{os.NewFile(uintptr(fds[1]), wire.FDPTY)}
		return s, nil
	}
	if stdin {
		if s.stdin, err = s.pipe(wire.FDStdin, true); err != nil {
			return nil, err
		}
	}
	if s.stdout, err = s.pipe(wire.FDStdout, false); err != nil {
		return nil, err
	}
	s.stderr, err = s.pipe(wire.FDStderr, false)
	return s, err
}

// pipe makes a pipe and returns our end of it.
func (s *stdio) pipe(name string, read bool) (*os.File, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, err
	}
	ours, theirs := fds[1], fds[0]
	if read {
		ours, theirs = theirs, ours
	}
	s.theirs = append(s.theirs, os.NewFile(uintptr(theirs), name))
	return os.NewFile(uintptr(ours), name), nil
}

// in returns the input, a nil interface without one.
func (s *stdio) in() io.Reader {
	if s.stdin == nil {
		return nil
	}
	return s.stdin
}

func (s *stdio) print(stream, line string) {
	to := s.stdout
	if stream == "stderr" && s.stderr != nil {
		to = s.stderr
	}
	fmt.Fprintln(to, line) // the reader may be gone
}

func (s *stdio) closeOutput() {
	s.stdout.Close()
	if s.stderr != nil {
		s.stderr.Close()
	}
}

func (s *stdio) close() {
	for _, f := range []*os.File{s.stdin, s.stdout, s.stderr} {
		if f != nil {
			f.Close()
		}
	}
}
