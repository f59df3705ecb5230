// Package filelease detects writers of a file by the kernel's file leases.
package filelease

import (
	"os"

	"golang.org/x/sys/unix"
)

// HasWriter reports whether any process has the file f, which is open for reading, open for
// writing. known is false if its file system has no leases, or f belongs to another user.
//
// "A read lease can be placed only on a file descriptor that is opened read-only" and, since the
// kernel must notify its holder of the first writer, only while there is none: fcntl(2),
// F_SETLEASE. HasWriter releases it at once; a process that opens the file meanwhile waits that
// long.
func HasWriter(f *os.File) (has, known bool) {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == unix.EAGAIN {
		return true, true
	}
	if err != nil {
		return false, false
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return false, err == nil
}
