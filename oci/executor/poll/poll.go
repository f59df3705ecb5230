// Package poll has files that Go's poller waits for, and their descriptors.
package poll

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// File makes a file of fd whose waits use the poller, not a thread.
func File(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Received puts a received file into the poller. It takes ownership of f; nil stays nil.
func Received(f *os.File) (*os.File, error) {
	if f == nil {
		return nil, nil
	}
	defer f.Close()
	var fd int
	if err := WithFD(f, func(n int) (err error) {
		fd, err = unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 3)
		return err
	}); err != nil {
		return nil, err
	}
	return File(fd, f.Name())
}

// Ready waits, in the poller, until poll(2) reports one of events for f.
func Ready(f *os.File, events int16) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: events}}
		n, err := unix.Poll(p, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
}

// WithFD calls f with the descriptor of a file that stays open meanwhile. Unlike os.File.Fd, it
// keeps the file in the poller.
func WithFD(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return os.ErrClosed
	}
	return inner
}

// Dup duplicates a file under the same name, to be sent.
func Dup(f *os.File) (*os.File, error) {
	var d *os.File
	err := WithFD(f, func(fd int) error {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err == nil {
			d = os.NewFile(uintptr(n), f.Name())
		}
		return err
	})
	return d, err
}

// Receive takes the one descriptor that a message has.
func Receive(socket, flags int) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, make([]byte, 1), oob, flags|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("recvmsg", err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err == nil && len(msgs) != 1 {
		err = fmt.Errorf("%d messages came with descriptors, want 1", len(msgs))
	}
	if err != nil {
		return -1, err
	}
	rights, err := unix.ParseUnixRights(&msgs[0])
	if err == nil && len(rights) != 1 {
		err = fmt.Errorf("%d descriptors came, want 1", len(rights))
	}
	if err != nil {
		return -1, err
	}
	return rights[0], nil
}
