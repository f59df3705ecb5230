package main

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxLog is the maximum size of the log, in bytes. It is on a tmpfs without log
// rotation: at this size it is renamed to executor.log.1, replacing the previous one.
const maxLog = 1 << 20

// A logFile rotates the file at path if that is standard error; any other standard
// error is left alone. What Go's runtime writes when it dies goes to the same file.
type logFile struct {
	path string
	mu   sync.Mutex
}

func newLogFile(path string) *logFile { return &logFile{path: path} }

// Write implements io.Writer.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rotate(len(p))
	return os.Stderr.Write(p)
}

// rotate begins a new file if the current one has no room for n bytes. If it cannot,
// the log goes on in the current file, as losing lines would be worse.
func (l *logFile) rotate(n int) {
	var out, at unix.Stat_t
	if unix.Fstat(2, &out) != nil || out.Size+int64(n) <= maxLog ||
		unix.Stat(l.path, &at) != nil || at.Ino != out.Ino || at.Dev != out.Dev {
		return
	}
	if os.Rename(l.path, l.path+".1") != nil {
		return
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	_ = unix.Dup3(int(f.Fd()), 2, 0)
}
