package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/flock"
	"github.com/crisp-cri/crisp/internal/unixsock"
)

// A rootLock ensures that only one agent works on a directory.
type rootLock struct {
	dir  *unixsock.Dir
	path string

	mu   sync.Mutex
	file *os.File // nil after close; guarded by mu
}

// lockRoot makes the directory and locks it. If another agent has it, the error is fault.Exists.
func lockRoot(root string) (*rootLock, error) {
	dir, err := unixsock.MakeDir(root, 0o750)
	if err != nil {
		return nil, err
	}
	l := &rootLock{dir: dir, path: filepath.Join(root, "agent.lock")}
	l.file, err = flock.Take(l.path)
	if errors.Is(err, flock.ErrHeld) {
		return nil, fault.Exists.Errorf("agent: another agent works on %s", root)
	}
	return l, err
}

func (l *rootLock) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.file.Close()
	l.file = nil
}

// watch restores the lock and the sockets if they are removed, until ctx ends.
func (l *rootLock) watch(ctx context.Context, sockets Sockets, log *slog.Logger) {
	unixsock.Watch(ctx, log, func() ([]string, error) {
		again, err := l.look()
		if err != nil {
			return nil, err // another agent has the root now, and the sockets
		}
		if sockets == nil {
			return again, nil
		}
		more, err := sockets.Look()
		return append(again, more...), err
	})
}

func (l *rootLock) look() (again []string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil, nil
	}
	if _, err := l.dir.Look(); err != nil {
		return nil, err
	}
	file, err := flock.Renew(l.file, l.path)
	if err != nil || file == l.file {
		return nil, err
	}
	l.file.Close()
	l.file = file
	return []string{l.path}, nil
}
