// Package regular opens files that others may have put where they are, pods for
// instance. Only a regular file is opened: a FIFO would hold who opens it until
// somebody writes, and the mere opening of a device can do things. Hence what is there
// is looked at (O_PATH of open(2)) before it is opened.
package regular

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrOther is what the errors of all that is no regular file are.
var ErrOther = errors.New("not a regular file")

// Open opens a regular file to be read. Links are followed.
func Open(path string) (*os.File, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0) })
	return open(fd, path, err)
}

// OpenNoLink is Open of a file that is no link itself.
func OpenNoLink(path string) (*os.File, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0) })
	return open(fd, path, err)
}

// OpenBeneath is Open of a file below a directory, out of which no link leads: one
// that would is an error.
func OpenBeneath(dir, name string) (*os.File, error) {
	root, err := retry(func() (int, error) { return unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(root)
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	again := func() (int, error) { return unix.Openat2(root, name, &how) }
	fd, err := retry(again)
	for range 10 {
		if err != unix.EAGAIN { // something was renamed meanwhile, so the kernel cannot be sure: openat2(2)
			break
		}
		fd, err = retry(again)
	}
	return open(fd, name, err)
}

// open opens what fd, of O_PATH, is of, and closes fd.
func open(fd int, path string, err error) (*os.File, error) {
	wrong := func(err error) error { return &fs.PathError{Op: "open", Path: path, Err: err} }
	if err != nil {
		return nil, wrong(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, wrong(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, wrong(ErrOther)
	}
	// The holder of a lease on the file is not waited for either.
	file, err := retry(func() (int, error) {
		return unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, wrong(err)
	}
	return os.NewFile(uintptr(file), path), nil
}

// retry calls f until no signal interrupts it, which some file systems allow.
func retry(f func() (int, error)) (int, error) {
	for {
		fd, err := f()
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// ReadAll returns what is in a file from here on. More than most bytes are an error.
func ReadAll(f *os.File, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("%s has more than %d bytes", f.Name(), most)
	}
	return data, nil
}
