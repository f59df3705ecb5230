package main

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxLog is the maximum size of the log, in bytes. It is on a tmpfs without log
// rotation: at this size it is renamed to executor.log.1, replacing the previous one.
const maxLog = 1 << 20

// A logFile rotates the file at path if that is standard error, and recreates it after it was
// removed or renamed; it ignores any other standard error. The last words of Go's runtime when it
// crashes go to the same file.
type logFile struct {
	path string
	own  bool // standard error is the log
	mu   sync.Mutex
}

func newLogFile(path string) *logFile {
	link, _ := os.Readlink(stderrLink)
	return &logFile{path: path, own: isStderr(path) || link == path+" (deleted)"}
}

// stderrLink points to the file itself, where path may be a symbolic link.
const stderrLink = "/proc/self/fd/2"

// isStderr reports whether the file at path is standard error.
func isStderr(path string) bool {
	var out, at unix.Stat_t
	return unix.Fstat(2, &out) == nil && unix.Stat(path, &at) == nil && at.Ino == out.Ino && at.Dev == out.Dev
}

func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tend(len(p))
	return os.Stderr.Write(p)
}

// look recreates the file if it is missing.
func (l *logFile) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tend(0)
}

// tend ensures that the next n bytes go to the file at path, and that it has room for them. If
// that is impossible, the current file grows, since losing lines would be worse, but not without
// bound.
func (l *logFile) tend(n int) {
	if !l.own || !isStderr(l.path) && l.reopen() {
		return
	}
	var out unix.Stat_t
	if unix.Fstat(2, &out) != nil || out.Size+int64(n) <= maxLog {
		return
	}
	// If path is a symbolic link, it stays one.
	file, err := os.Readlink(stderrLink)
	if err == nil && isStderr(file) && os.Rename(file, file+".1") == nil && l.reopen() {
		return
	}
	if out.Size > 2*maxLog {
		_ = unix.Ftruncate(2, 0)
	}
}

// reopen opens the file at path as standard error.
func (l *logFile) reopen() bool {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Dup3(int(f.Fd()), 2, 0) == nil
}
