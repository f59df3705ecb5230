package stdio

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/oci/executor/poll"
	"github.com/crisp-cri/crisp/oci/wire"
)

// FIFOs are the stdio of a shim's process: the shim opens them by their paths, as often as it is
// asked, and so do we. What is in a FIFO stays there as long as either side has it open.
type FIFOs struct {
	Stdin, Stdout, Stderr string // "" = none
}

// FIFOsIn names those of a process in a directory. A terminal has no stderr.
func FIFOsIn(dir string, stdin, tty bool) FIFOs {
	f := FIFOs{Stdout: filepath.Join(dir, wire.FDStdout)}
	if stdin {
		f.Stdin = filepath.Join(dir, wire.FDStdin)
	}
	if !tty {
		f.Stderr = filepath.Join(dir, wire.FDStderr)
	}
	return f
}

// Make creates those that are not there yet.
func (f FIFOs) Make() error {
	for _, path := range []string{f.Stdin, f.Stdout, f.Stderr} {
		if path == "" {
			continue
		}
		if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, fs.ErrExist) {
			return &fs.PathError{Op: "mkfifo", Path: path, Err: err}
		}
	}
	return nil
}

// Open opens our ends, without waiting for the shim's. We have the writing side of stdin open for
// reading, too: else it could be opened only after the shim has opened it.
func (f FIFOs) Open() (ends *Ends, err error) {
	ends = &Ends{}
	for i, path := range []string{f.Stdin, f.Stdout, f.Stderr} {
		mode := unix.O_RDONLY
		if i == 0 {
			mode = unix.O_RDWR
		}
		if path == "" {
			continue
		}
		if ends.Ours[i], err = openFIFO(path, mode); err != nil {
			ends.Close()
			return nil, err
		}
	}
	return ends, nil
}

// settleTime bounds how long Settle waits for the shim, which may open a FIFO later than it answers.
const settleTime = 2 * time.Second

// Settle leaves us only the writing side of stdin once the shim has opened the other: before that,
// what is written would be lost with our closing of it, and after that we see that the shim has closed
// it. Nothing has been written yet.
func (f FIFOs) Settle(ends *Ends) error {
	if f.Stdin == "" || ends.Ours[0] == nil {
		return nil
	}
	deadline := time.Now().Add(settleTime)
	for pause := backoff.New(time.Millisecond, 50*time.Millisecond); ; time.Sleep(pause.Next()) {
		ends.Ours[0].Close() // we are a reader, too
		var err error
		if ends.Ours[0], err = openFIFO(f.Stdin, unix.O_WRONLY); err == nil || !errors.Is(err, unix.ENXIO) {
			return err
		}
		if ends.Ours[0], err = openFIFO(f.Stdin, unix.O_RDWR); err != nil || time.Now().After(deadline) {
			return err
		}
	}
}

// openFIFO opens what must be a FIFO: a shim could have replaced it.
func openFIFO(path string, mode int) (*os.File, error) {
	fd, err := unix.Open(path, mode|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.Join(errors.New("it is no FIFO"), err)}
	}
	return poll.File(fd, filepath.Base(path))
}
