// Package unixsock listens on Unix sockets whose files may be removed: by hand, or by a program
// that cleans /run or /tmp. New clients could then not connect, although the daemon runs and has
// its connections. Look, which Watch calls periodically, restores the file:
//
//	at the path          what Look does
//	the socket's file    nothing
//	nothing              binds another socket there, with the mode and owner of the first
//	a dead socket        the same
//	a live socket        leaves it: it is another process's, perhaps a successor's
//	anything else        leaves it
//
// A socket that was bound once cannot be bound to a path again (unix(7)), and a removed name
// cannot be given back to its file (linkat(2)): so Look uses another socket. The first is
// closed; its connections were accepted long before.
package unixsock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/periodic"
	"github.com/crisp-cri/crisp/internal/thread"
)

// Options are the modes of the files that Listen and Bind create.
type Options struct {
	Mode fs.FileMode // of the socket
	Dir  fs.FileMode // of its directory, if that is missing
}

// A Listener is a net.Listener at a path.
type Listener struct {
	path string

	mu     sync.Mutex
	socket *net.UnixListener // guarded by mu
	file   owned             // what socket is bound to, as last seen; guarded by mu
	dir    *Dir              // of path; guarded by mu
	closed bool              // guarded by mu
}

// Listen listens at path. It replaces a socket left there by a dead process; a live listener's
// socket is an error, and so is any other file.
func Listen(path string, o Options) (*Listener, error) {
	if err := free(path); err != nil {
		return nil, err
	}
	return Bind(path, o)
}

// Bind is Listen without the check for a live listener. Call it under a lock that excludes other
// listeners: a killed predecessor's child, just forked, may keep the socket open a moment longer.
func Bind(path string, o Options) (*Listener, error) {
	if err := remove(path); err != nil {
		return nil, err
	}
	dir, err := MakeDir(filepath.Dir(path), o.Dir)
	if err != nil {
		return nil, err
	}
	socket, err := bind(path)
	if err != nil {
		return nil, err
	}
	l := &Listener{path: path, socket: socket, dir: dir}
	if err := errors.Join(os.Chmod(path, o.Mode), l.see()); err != nil {
		return nil, errors.Join(err, socket.Close(), os.Remove(path))
	}
	return l, nil
}

// Resume returns a Listener of a socket that was bound to path by the program that executed this
// one. The first Look finds whether its file still exists.
func Resume(socket *net.UnixListener, path string, o Options) *Listener {
	socket.SetUnlinkOnClose(false)
	l := &Listener{path: path, socket: socket, file: owned{mode: o.Mode}, dir: &Dir{filepath.Dir(path), owned{mode: o.Dir}}}
	_ = l.see()
	return l
}

// see records the file at the path as the socket's.
func (l *Listener) see() error {
	at, err := os.Lstat(l.path)
	if err != nil {
		return err
	}
	if at.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s is not a socket", l.path)
	}
	l.file = own(at)
	return nil
}

// bind binds a socket to path that only its owner can connect to.
func bind(path string) (l *net.UnixListener, err error) {
	// No other user may connect between bind and chmod, so a umask sets the mode, on a thread of
	// its own: the process creates files meanwhile.
	err = thread.Run(func() (err error) {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		unix.Umask(0o177)
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // the file at the path may be another's by then
	return l, nil
}

// Answers reports whether a process accepts connections at the socket at path.
func Answers(path string) bool {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
	}
	return err == nil
}

// free returns an error unless a socket may be bound to path, once what is there is removed.
func free(path string) error {
	c, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		c.Close()
		return fmt.Errorf("socket %s is in use", path)
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("socket %s: %w", path, err)
	}
	return nil
}

// remove removes the socket at path, if there is one.
func remove(path string) error {
	info, err := os.Lstat(path)
	if err == nil && info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s exists and is not a socket", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Look restores the file if it is gone, and reports whether it did. On an error nothing changes.
// After Close it does nothing.
func (l *Listener) Look() (again bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false, nil
	}
	if at := l.there(); at != nil {
		l.file = own(at)
		_, err := l.dir.Look()
		return false, err
	}
	if err := free(l.path); err != nil {
		return false, err
	}
	if err := remove(l.path); err != nil {
		return false, err
	}
	if _, err := l.dir.Look(); err != nil {
		return false, err
	}
	next, err := bind(l.path)
	if err != nil {
		return false, err
	}
	if err := l.file.restore(l.path); err != nil {
		return false, errors.Join(err, next.Close(), os.Remove(l.path))
	}
	last := l.socket
	l.socket = next
	last.Close()
	return true, l.see()
}

// there returns the file at the path if it is the socket's, else nil. Its inode number is not
// reused meanwhile: the socket keeps the inode.
func (l *Listener) there() fs.FileInfo {
	at, err := os.Lstat(l.path)
	if err != nil || l.file.info == nil || !os.SameFile(at, l.file.info) {
		return nil
	}
	return at
}

// AcceptUnix accepts the next connection. The error is net.ErrClosed after Close.
func (l *Listener) AcceptUnix() (*net.UnixConn, error) {
	for {
		socket := l.current()
		conn, err := socket.AcceptUnix()
		if errors.Is(err, net.ErrClosed) && l.current() != socket {
			continue // Look has replaced it
		}
		return conn, err
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, err // and not a nil *net.UnixConn
	}
	return conn, nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// SyscallConn returns the descriptor, which Look may replace.
func (l *Listener) SyscallConn() (syscall.RawConn, error) { return l.current().SyscallConn() }

func (l *Listener) current() *net.UnixListener {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.socket
}

// Closed reports whether Close has been called.
func (l *Listener) Closed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// Close stops listening and removes the socket's file, unless another is in its place.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && l.there() != nil {
		_ = os.Remove(l.path)
	}
	l.closed = true
	return l.socket.Close()
}

// Period is how often Watch looks. A look is a few calls of stat(2).
const Period = 3 * time.Second

// Watch calls look each Period until ctx ends. It logs the restored paths, and an error if it
// differs from the previous one.
func Watch(ctx context.Context, log *slog.Logger, look func() (again []string, err error)) {
	last := ""
	periodic.Run(ctx, Period, func(context.Context) {
		again, err := look()
		for _, path := range again {
			log.Warn("file had been removed, and was put back", "path", path)
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != "" && text != last {
			log.Warn("files that were removed cannot be put back", "err", err)
		}
		last = text
	})
}

// LookAll looks at each of the listeners.
func LookAll(listeners ...*Listener) (again []string, err error) {
	for _, l := range listeners {
		bound, lerr := l.Look()
		if bound {
			again = append(again, l.path)
		}
		err = errors.Join(err, lerr)
	}
	return again, err
}

// Peer returns the process at the other end of a connection (SO_PEERCRED, unix(7)): the one that
// connected, or that listens. Its PID is 0 if it is in a PID namespace that we cannot see. The
// error is net.ErrClosed if the connection has been closed on our side.
func Peer(conn syscall.Conn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if cerr != nil {
		return nil, cerr
	}
	return cred, os.NewSyscallError("getsockopt", err)
}

// A Dir is a directory that can be recreated, with the mode and owner that it had.
type Dir struct {
	path string
	last owned // as last seen
}

// MakeDir creates a directory, with this mode, and missing ones above it. An existing directory
// keeps its mode.
func MakeDir(path string, mode fs.FileMode) (*Dir, error) {
	d := &Dir{filepath.Clean(path), owned{mode: mode}}
	_, err := d.Look()
	return d, err
}

// Path returns the directory's path.
func (d *Dir) Path() string { return d.path }

// Look recreates the directory if it is gone, and reports whether it did.
func (d *Dir) Look() (again bool, err error) {
	info, err := os.Stat(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(d.path, d.last.mode.Perm()); err != nil {
			return false, err
		}
		if err := d.last.restore(d.path); err != nil {
			return false, err
		}
		again = true
		info, err = os.Stat(d.path)
	}
	if err != nil {
		return again, err
	}
	d.last = own(info)
	return again, nil
}

// An owned is a file's mode and owner.
type owned struct {
	info     fs.FileInfo // nil = unknown, as is the owner
	mode     fs.FileMode
	uid, gid int
}

func own(info fs.FileInfo) owned {
	o := owned{info: info, mode: info.Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		o.uid, o.gid = int(st.Uid), int(st.Gid)
	}
	return o
}

// restore gives a new file the mode and owner of its predecessor. The owner comes first: until
// then the file has the mode of a new one, which admits fewer.
func (o owned) restore(path string) error {
	if o.info != nil {
		if err := os.Lchown(path, o.uid, o.gid); err != nil {
			return err
		}
	}
	return os.Chmod(path, o.mode)
}
