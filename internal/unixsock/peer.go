package unixsock

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Peer returns the process at the other end of a connection (SO_PEERCRED, unix(7)): the one that
// connected, or that listens. Its PID is 0 if it is in a PID namespace that we cannot see. The
// error is net.ErrClosed if the connection has been closed on our side.
func Peer(conn syscall.Conn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if cerr != nil {
		return nil, cerr
	}
	return cred, os.NewSyscallError("getsockopt", err)
}
