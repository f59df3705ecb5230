package layer

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A disk is the file system of the store.
//
// If a page cannot be written in the background it is lost. syncfs(2) reports that once for each
// open file description that was open before the error, or if nothing has reported the error
// yet. A description opened after a layer was written, only to sync it, misses an error already
// reported to another sync. So one is kept open for the store's life, and the errors that it
// reports are counted.
//
// A sync waits for the pages of all who write to that disk, and cannot be interrupted. So no caller
// owns it: a caller who gives up leaves it running, and all who come while one is under way share
// the next.
type disk struct {
	fd     int
	syncfs func(fd int) error // unix.Syncfs

	losses  atomic.Int64
	syncing sync.WaitGroup

	mu   sync.Mutex
	busy bool          // a sync is under way; guarded by mu
	next chan struct{} // closed at the end of the next sync; nil: no caller waits for it; guarded by mu
	last error         // of the last loss; guarded by mu
}

// openDisk opens the file system of the directory dir.
func openDisk(dir string) (*disk, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	return &disk{fd: fd, syncfs: unix.Syncfs}, nil
}

// close waits for syncs under way: once closed, their descriptor's number could be reused.
func (d *disk) close() error {
	d.syncing.Wait()
	return os.NewSyscallError("close", unix.Close(d.fd))
}

// sync writes everything to disk, which is far cheaper than an fsync of each file. It also fails
// if something was lost since the count of losses was before, or when ctx ends.
func (d *disk) sync(ctx context.Context, before int64) error {
	select {
	case <-d.join():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.losses.Load() > before {
		return fmt.Errorf("the disk has lost what was written to it: %w", os.NewSyscallError("syncfs", d.last))
	}
	return nil
}

// join returns a channel that is closed when a sync that began after the call has ended: one
// already under way may have missed the latest writes.
func (d *disk) join() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.next == nil {
		d.next = make(chan struct{})
	}
	if !d.busy {
		d.busy = true
		d.syncing.Go(d.run)
	}
	return d.next
}

// run syncs until no caller waits for another sync.
func (d *disk) run() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.next != nil {
		over := d.next
		d.next = nil
		d.mu.Unlock()
		err := d.syncfs(d.fd)
		d.mu.Lock()
		if err != nil {
			d.losses.Add(1)
			d.last = err
		}
		close(over)
	}
	d.busy = false
}
