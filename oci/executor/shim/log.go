package shim

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Log is the FIFO "log" in a bundle, which a shim opens when it starts. It waits there for a reader,
// so the FIFO is opened first, and again by the next executor.
type Log struct{ file *os.File }

// OpenLog opens the log of the bundle, and makes it if it is missing.
func OpenLog(bundle string) (*Log, error) {
	path := filepath.Join(bundle, "log")
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, &fs.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	// With a writer of ours it never ends, and what is in it outlives the shim.
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		file.Close()
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.Join(errors.New("it is no FIFO"), err)}
	}
	return &Log{file}, nil
}

// Bounds of a shim's log: more of a line, and more lines at once, are dropped.
const (
	maxLine    = 4 << 10 // bytes
	maxLines   = 50      // in one linesTime
	linesTime  = time.Second
	dropNotice = "… lines were dropped"
)

// Lines passes each line to line until the log is closed. It reads on while lines are dropped, so that
// the shim does not block.
func (l *Log) Lines(line func(string)) {
	reader := bufio.NewReaderSize(l.file, maxLine)
	var since time.Time
	count, skip := 0, false
	for {
		text, more, err := reader.ReadLine()
		if err != nil {
			return
		}
		if now := time.Now(); now.Sub(since) > linesTime {
			since, count = now, 0
		}
		first := !skip
		skip = more // what follows belongs to the same line
		if strings.Contains(string(text), "dial unix: missing address") {
			continue // an event that it cannot publish: crisp gives shims no address
		}
		if count++; !first || count > maxLines+1 {
			continue
		}
		if count > maxLines {
			line(dropNotice)
			continue
		}
		line(shorten(string(text)))
	}
}

// Close ends Lines. The FIFO stays.
func (l *Log) Close() { l.file.Close() }
