package logread

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/periodic"
)

// A watch wakes the reader when there may be something to read. It uses inotify(7) directly: the
// package fsnotify does not report that a file was closed, which shows the end of a container at
// once, and it cannot watch a file whose name changes.
type watch struct {
	fd    int
	f     *os.File // of fd, in Go's poller; nil without inotify
	file  int      // watch descriptor of the open file
	close bool     // a writer has closed the open file
	buf   [4096]byte
}

// newWatch returns a watch for files that appear in dir. It fails if the user has no inotify
// instances or watches left (fs.inotify.max_user_*).
func newWatch(dir string) (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	w := &watch{fd: fd, f: os.NewFile(uintptr(fd), "inotify"), file: -1}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ONLYDIR); err != nil {
		w.f.Close()
		return nil, os.NewSyscallError("inotify_add_watch", err)
	}
	return w, nil
}

// follow watches f instead of the previous file.
func (w *watch) follow(f *os.File) error {
	if w.f == nil {
		return nil
	}
	if w.file >= 0 {
		// The watch may have ended with the file.
		_, _ = unix.InotifyRmWatch(w.fd, uint32(w.file))
	}
	w.close = false
	var err error
	if w.file, err = unix.InotifyAddWatch(w.fd, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.IN_MODIFY|unix.IN_CLOSE_WRITE); err != nil {
		return os.NewSyscallError("inotify_add_watch", err)
	}
	return nil
}

// end closes inotify. From then on the watch only waits.
func (w *watch) end() {
	if w.f != nil {
		w.f.Close()
		w.f = nil
	}
}

// wait returns when something has happened, after d, or when ctx ends.
func (w *watch) wait(ctx context.Context, d time.Duration) {
	if w.f == nil {
		periodic.Pause(ctx, d)
		return
	}
	// After an error the caller polls.
	if w.f.SetReadDeadline(time.Now().Add(d)) != nil {
		w.end()
		return
	}
	f := w.f
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	n, err := f.Read(w.buf[:])
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		w.end()
	}
	for events := w.buf[:max(n, 0)]; len(events) >= unix.SizeofInotifyEvent; {
		wd := int32(binary.NativeEndian.Uint32(events))
		mask := binary.NativeEndian.Uint32(events[4:])
		name := binary.NativeEndian.Uint32(events[12:])
		if int(wd) == w.file && mask&unix.IN_CLOSE_WRITE != 0 {
			w.close = true
		}
		events = events[unix.SizeofInotifyEvent+name:]
	}
}
