package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/internal/flock"
	"github.com/crisp-cri/crisp/internal/unixsock"
)

// dirMode is the mode of root and state. Others may pass through them: the users of a user
// namespace must reach its root file system. The content has its own modes.
const dirMode = 0o711

// A files has what crispd restores after it was removed: its directories, their locks and its
// sockets. NRI's socket belongs to its library, and comes back with the next crispd.
type files struct {
	dirs []*unixsock.Dir

	mu      sync.Mutex
	locks   []lock               // guarded by mu
	sockets []*unixsock.Listener // guarded by mu
	closed  bool                 // guarded by mu
}

// A lock keeps any other crispd out of a directory until this process ends, when the kernel
// releases it (flock(2)).
type lock struct {
	path string
	file *os.File
}

// takeFiles makes root and state and locks both until close is called.
func takeFiles(dirs ...string) (_ *files, err error) {
	f := &files{}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	for _, path := range dirs {
		path = config.Resolve(path) // a link may lead nowhere, after crispd wipe
		dir, err := unixsock.MakeDir(path, dirMode)
		if err != nil {
			return nil, err
		}
		l := lock{path: filepath.Join(path, "crispd.lock")}
		l.file, err = flock.Take(l.path)
		if errors.Is(err, flock.ErrHeld) {
			return nil, fmt.Errorf("another crispd uses %s", path)
		}
		if err != nil {
			return nil, err
		}
		f.dirs, f.locks = append(f.dirs, dir), append(f.locks, l)
	}
	return f, nil
}

// close releases the locks. Nothing is restored after it.
func (f *files) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, l := range f.locks {
		l.file.Close()
	}
	f.locks = nil
}

// listen makes the unix socket at path, for root and its group. It replaces a socket that a dead
// crispd left; one that a process listens at is an error.
func (f *files) listen(path string) (*unixsock.Listener, error) { return f.listenAs(path, 0o660) }

// listenForRoot is listen for root alone.
func (f *files) listenForRoot(path string) (*unixsock.Listener, error) {
	return f.listenAs(path, 0o600)
}

func (f *files) listenAs(path string, mode fs.FileMode) (*unixsock.Listener, error) {
	l, err := unixsock.Listen(path, unixsock.Options{Mode: mode, Dir: f.dirMode(filepath.Dir(path))})
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sockets = slices.DeleteFunc(f.sockets, (*unixsock.Listener).Closed)
	f.sockets = append(f.sockets, l)
	return l, nil
}

// dirMode returns the mode of a socket's directory, for when it is missing.
func (f *files) dirMode(dir string) fs.FileMode {
	for _, own := range f.dirs {
		if own.Path() == filepath.Clean(dir) {
			return dirMode
		}
	}
	return 0o755
}

// look restores missing files. It fails if another crispd has locked a directory meanwhile: then
// the sockets are that crispd's too.
func (f *files) look() (again []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, nil
	}
	for _, dir := range f.dirs {
		if _, err := dir.Look(); err != nil {
			return again, err
		}
	}
	for i, l := range f.locks {
		file, err := flock.Renew(l.file, l.path)
		if err != nil {
			return again, err
		}
		if file != l.file {
			l.file.Close()
			f.locks[i].file = file
			again = append(again, l.path)
		}
	}
	sockets, err := unixsock.LookAll(f.sockets...)
	return append(again, sockets...), err
}

// sure returns a listener whose connections are closed at the first failed write. grpc-go then
// stops writing and leaves the closing to its reader. But a write can fail alone, for lack of
// memory (ENOBUFS, ENOMEM), and the client would wait forever for responses that are never
// written.
func sure(l net.Listener) net.Listener { return sureListener{l} }

type sureListener struct{ net.Listener }

func (l sureListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return sureConn{conn}, nil
}

type sureConn struct{ net.Conn }

func (c sureConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil {
		c.Close()
	}
	return n, err
}
