package fastinit

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/thread"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/internal/userns"
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
	template := s.template
	if p.mapped {
		template = s.visible
	}
	var flags uintptr
	if p.newPID {
		flags = unix.CLONE_NEWPID
	}
	pid, err := spawn([...]*os.File{o.Stdio[0], o.Stdio[1], o.Stdio[2], theirs, plan, cmp.Or(o.Init, template)}, flags)
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

// follow returns when the child continues as another process. The first one has reported that before it
// exits, or was killed.
func (c *Child) follow() error {
	for {
		if _, err := unix.Wait4(c.Pid, nil, 0, nil); err != unix.EINTR {
			break
		}
	}
	for {
		r, err := c.receive(unix.MSG_DONTWAIT)
		switch {
		case err == io.EOF, errors.Is(err, unix.EAGAIN):
			return errEnded
		case err != nil:
			return err
		case r.kind == 'p':
			c.Pid = int(r.detail)
			// A process in the container might have made the other one, which it sees, say that. The list of
			// this thread's children would say it too, but has one for each container.
			const ours = unix.WEXITED | unix.WNOHANG | unix.WNOWAIT | unix.WALL | unix.WNOTHREAD
			if err := unix.Waitid(unix.P_PID, c.Pid, nil, ours, nil); err != nil {
				return fmt.Errorf("init named process %d, which is no child of ours", c.Pid)
			}
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

func (c *Child) Proceed() error {
	_, err := c.conn.Write([]byte{'g'})
	return err
}

// Executed returns nil when the child has executed its program, or has ended while it did: then its
// exit status tells. The connection is closed by then. Any error after the child has said that it is
// about to is a ProgramError: that program must not be started again.
func (c *Child) Executed() error {
	for begun := false; ; {
		r, err := c.read()
		switch {
		case err == io.EOF && begun:
			return c.conn.Close()
		case err == io.EOF:
			return errEnded
		case err == nil && r.kind == 'x':
			begun = true
			continue
		case err == nil && r.kind == 'e':
			err = c.plan.failure(r)
		case err == nil:
			err = fmt.Errorf("init sent a report of kind %d", r.kind)
		}
		if begun {
			return ProgramError{err}
		}
		return err
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
	return c.receive(0)
}

// receive reads a report; flags are of recv(2).
func (c *Child) receive(flags int) (report, error) {
	b := make([]byte, reportSize)
	for {
		n, _, err := unix.Recvfrom(int(fdOf(c.conn)), b, flags)
		switch {
		case err == unix.EINTR:
		case err == unix.ECONNRESET, err == nil && n == 0:
			return report{}, io.EOF
		case err != nil:
			return report{}, os.NewSyscallError("recvfrom", err)
		case n != reportSize:
			return report{}, fmt.Errorf("init sent %d bytes", n)
		default:
			return parse(b), nil
		}
	}
}

// A Starter starts children.
type Starter struct {
	template *os.File // the mount namespace that children copy
	visible  *os.File // the same with a procfs and a sysfs, for those in a user namespace
}

// New returns a starter, whose children execute this program. The error says what the kernel
// lacks, or a filter around this program forbids: the mount attributes that it sets require
// Linux 5.14. It starts a child, for what else may keep all from starting: a C library that gives
// constructors no arguments (musl), a memfd that may not be executed.
func New() (*Starter, error) {
	if err := errors.Join(reserve(), mayOpen()); err != nil {
		return nil, err
	}
	s := &Starter{}
	err := thread.Run(func() (err error) {
		if s.visible, err = newTemplate(true); err == nil {
			s.template, err = newTemplate(userns.Own() != nil)
		}
		return err
	})
	if err == nil {
		err = s.try()
	}
	if err != nil {
		s.template.Close()
		s.visible.Close()
		return nil, err
	}
	return s, nil
}

// try starts a child that has nothing to do, and has to say so.
func (s *Starter) try() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p := &Plan{}
	p.add(stepEnd, "trial of the fast init")
	child, err := s.Start(p, Options{Stdio: [3]*os.File{null, null, null}})
	if err != nil {
		return err
	}
	defer unix.Wait4(child.Pid, nil, 0, nil)
	defer child.Close()
	if err := child.Await(); !errors.Is(err, unix.EBADMSG) {
		return fmt.Errorf("trial of the fast init: %w", err)
	}
	return nil
}

// mayOpen tries the calls that only children make. It does not clone the tree that it opens, because
// no kernel clones every mount.
func mayOpen() error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("open_tree", err)
	}
	unix.Close(tree)
	file, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC})
	if err != nil {
		return os.NewSyscallError("openat2", err)
	}
	unix.Close(file)
	return nil
}

// newTemplate moves the calling thread into a mount namespace of one read-only file system with
// empty directories, or with a procfs and a sysfs in them, and returns the namespace.
func newTemplate(visible bool) (_ *os.File, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return nil, os.NewSyscallError("unshare", err)
	}
	own, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil, err
	}
	steps.Add("namespace", own.Close)
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return nil, os.NewSyscallError("mount", err)
	}
	context, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(context)
	err = errors.Join(
		unix.FsconfigSetString(context, "mode", "0555"),
		unix.FsconfigCreate(context))
	if err != nil {
		return nil, os.NewSyscallError("fsconfig", err)
	}
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	defer unix.Close(fd)
	for _, name := range []string{"root", "proc", "sysfs"} {
		if err := unix.Mkdirat(fd, name, 0o555); err != nil {
			return nil, os.NewSyscallError("mkdir", err)
		}
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSYMFOLLOW}); err != nil {
		return nil, os.NewSyscallError("mount_setattr", err)
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return nil, os.NewSyscallError("move_mount", err)
	}
	if err := unix.Fchdir(fd); err != nil {
		return nil, os.NewSyscallError("fchdir", err)
	}
	if visible {
		const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
		if unix.Mount("proc", "proc", "proc", flags, "") != nil { // the PID namespace is of another user namespace
			_ = unix.Mount("/proc", "proc", "", unix.MS_BIND|unix.MS_REC, "")
		}
		_ = unix.Mount("sysfs", "sysfs", "sysfs", flags, "") // what is not there no child can mount
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return nil, os.NewSyscallError("pivot_root", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return nil, os.NewSyscallError("umount", err)
	}
	return own, nil
}
