package layer

import (
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A disk is the file system that the store is on.
//
// A page that could not be written in the background is lost, and syncfs(2) tells of
// that once for each open file description, if it was there before the error or nobody
// has been told yet. One that is opened after a layer was written, only to sync it,
// learns nothing of what somebody else's sync was told. So there is one for the
// store's life, and what it learns is counted.
type disk struct {
	fd int

	losses atomic.Int64
	mu     sync.Mutex // held while the disk is synced: who comes second must know what the first was told
	last   error      // of the last loss; guarded by mu
}

// openDisk opens the file system of the directory dir.
func openDisk(dir string) (*disk, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	return &disk{fd: fd}, nil
}

func (d *disk) close() error { return os.NewSyscallError("close", unix.Close(d.fd)) }

// sync writes everything to the disk: cheaper by far than an fsync of each file. It
// fails, too, if something was lost since there were before losses.
func (d *disk) sync(before int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := unix.Syncfs(d.fd); err != nil {
		d.losses.Add(1)
		d.last = err
	}
	if d.losses.Load() > before {
		return fmt.Errorf("the disk has lost what was written to it: %w", os.NewSyscallError("syncfs", d.last))
	}
	return nil
}
