package server

import (
	"os"

	"golang.org/x/sys/unix"
)

// setSize sets the size of a terminal, in characters.
func setSize(pty *os.File, width, height uint16) error {
	raw, err := pty.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height})
	})
	if err != nil {
		return err
	}
	return set
}
