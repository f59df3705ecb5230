// Package regular opens files that others, such as pods, may have replaced. It opens only
// regular files: a FIFO would block until it has a writer, and merely opening a device can
// have effects. So it examines a file (O_PATH of open(2)) before it opens it.
package regular

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrOther is wrapped by the errors for anything but a regular file.
var ErrOther = errors.New("not a regular file")

// errNull is the error for the null device, which a file that an operator masks is a link to.
var errNull = fmt.Errorf("%w: it is /dev/null", ErrOther)

// Open opens a regular file for reading. It follows symlinks.
func Open(path string) (*os.File, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0) })
	return open(fd, path, err)
}

// OpenNoLink is Open, but the file itself must not be a symlink.
func OpenNoLink(path string) (*os.File, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0) })
	return open(fd, path, err)
}

// OpenBeneath is Open of a file below a directory. A symlink that leads out of the
// directory is an error.
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

// open opens the file of fd, an O_PATH descriptor, and closes fd.
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
	if st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3) {
		return nil, wrong(errNull)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, wrong(ErrOther)
	}
	// Do not wait for the holder of a lease on the file either.
	file, err := retry(func() (int, error) {
		return unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, wrong(err)
	}
	return os.NewFile(uintptr(file), path), nil
}

// retry calls f until no signal interrupts it, which can happen on some file systems.
func retry(f func() (int, error)) (int, error) {
	for {
		fd, err := f()
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// MaxConfig is enough for any configuration file, in bytes. Real ones have some KiB.
const MaxConfig = 4 << 20

// ReadFile reads a regular file of at most most bytes. It follows symlinks. /dev/null is an empty file.
func ReadFile(path string, most int64) ([]byte, error) {
	f, err := Open(path)
	if errors.Is(err, errNull) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll(f, most)
}

// CheckConfig returns why a configuration file must not be left to a library, which would wait for
// the writer of a FIFO, and read whatever it finds. The error wraps fs.ErrNotExist if the file is
// missing. /dev/null is an empty file.
func CheckConfig(path string) error {
	f, err := Open(path)
	if errors.Is(err, errNull) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Size() > MaxConfig {
		err = fmt.Errorf("%s has more than %d bytes", path, MaxConfig)
	}
	return err
}

// ReadAll reads the rest of a file. More than most bytes are an error.
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
