package fastinit

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// extraFD is the child's descriptor besides stdio, the connection and the plan: the template for
// a container, the pidfd of its container's init for an exec.
const extraFD = 5

// Options are the arguments of Start.
type Options struct {
	Stdio [3]*os.File // all set
	Init  *os.File    // for an Exec: the pidfd of the container's init
}

// A Child is a started process. When it is ready it waits (Await), until Proceed.
type Child struct {
	Pid   int
	plan  *Plan
	conn  *os.File
	early []report // received before its PID was known
}

// Start forks a child of the calling thread, to which the caller has locked the goroutine.
func (s *Starter) Start(p *Plan, o Options) (_ *Child, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	conn, theirs := os.NewFile(uintptr(fds[0]), "init"), os.NewFile(uintptr(fds[1]), "init")
	defer func() {
		theirs.Close()
		if err != nil {
			conn.Close()
		}
	}()
	plan, err := p.file()
	if err != nil {
		return nil, err
	}
	defer plan.Close()
	extra := s.template
	if o.Init != nil {
		extra = o.Init
	}
	var flags uintptr
	if p.newPID {
		flags = unix.CLONE_NEWPID
	}
	pid, err := spawn([...]*os.File{o.Stdio[0], o.Stdio[1], o.Stdio[2], theirs, plan, extra}, flags)
	if err != nil {
		return nil, fmt.Errorf("start init: %w", err)
	}
	theirs.Close() // or its end would go unnoticed
	c := &Child{Pid: pid, plan: p, conn: conn}
	if p.forks > 0 {
		return c, c.follow()
	}
	return c, nil
}

// follow returns when the child continues as another process.
func (c *Child) follow() error {
	first := c.Pid
	defer unix.Wait4(first, nil, 0, nil)
	for {
		r, err := c.receive()
		switch {
		case err == io.EOF:
			return errEnded
		case err != nil:
			return err
		case r.kind == 'p':
			c.Pid = int(r.detail)
			return nil
		case r.kind == 'e' && r.step <= uint64(c.plan.forks): // before it could fork
			return c.plan.failure(r)
		default: // of the other process, which was faster
			c.early = append(c.early, r)
		}
	}
}

// fdOf returns the descriptor of a file, which stays in the poller if it is there.
func fdOf(f *os.File) (fd uintptr) {
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Control(func(n uintptr) { fd = n })
	}
	if err != nil {
		return ^uintptr(0) // closed: the fork will report it
	}
	return fd
}

// file writes a plan to a memfd.
func (p *Plan) file() (*os.File, error) {
	fd, err := unix.MemfdCreate("plan", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "plan")
	if _, err := f.Write(p.data); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// fork appends the step by which the child continues in the PID namespace that it has joined.
func (p *Plan) fork() {
	p.forks = len(p.what)
	p.add(stepFork, "fork")
}

// errEnded means that the child ended without a report.
var errEnded = errors.New("init ended before its program was executed")

// Await returns when the child waits for Proceed.
func (c *Child) Await() error {
	switch r, err := c.read(); {
	case err == io.EOF:
		return errEnded
	case err != nil:
		return err
	case r.kind == 'w':
		return nil
	case r.kind == 'e':
		return c.plan.failure(r)
	default:
		return fmt.Errorf("init sent a report of kind %d", r.kind)
	}
}

// Proceed lets the child continue.
func (c *Child) Proceed() error {
	_, err := c.conn.Write([]byte{'g'})
	return err
}

// Executed returns when the child has executed its program, or has ended: its name tells which.
// The connection is closed then.
func (c *Child) Executed() error {
	for {
		switch r, err := c.read(); {
		case err == io.EOF:
			return c.conn.Close()
		case err != nil:
			return err
		case r.kind == 'e':
			return c.plan.failure(r)
		}
	}
}

// Close ends the connection; a waiting child then exits.
func (c *Child) Close() { c.conn.Close() }

func (c *Child) read() (report, error) {
	if len(c.early) > 0 {
		r := c.early[0]
		c.early = c.early[1:]
		return r, nil
	}
	return c.receive()
}

func (c *Child) receive() (report, error) {
	b := make([]byte, reportSize)
	for {
		n, err := unix.Read(int(fdOf(c.conn)), b)
		switch {
		case err == unix.EINTR:
		case err == unix.ECONNRESET, err == nil && n == 0:
			return report{}, io.EOF
		case err != nil:
			return report{}, os.NewSyscallError("read", err)
		case n != reportSize:
			return report{}, fmt.Errorf("init sent %d bytes", n)
		default:
			return parse(b), nil
		}
	}
}
