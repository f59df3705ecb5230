package main

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/remotecommand"
)

// rawMode hands every key to the command, as cfmakeraw(3) does, and returns what
// puts the terminal back.
func rawMode(f *os.File) (restore func(), err error) {
	fd := int(f.Fd())
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	raw := *old
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return nil, err
	}
	return func() { unix.IoctlSetTermios(fd, unix.TCSETS, old) }, nil
}

// withoutEcho has a terminal not show what is typed, until restore.
func withoutEcho(f *os.File) (restore func(), err error) {
	fd := int(f.Fd())
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	quiet := *old
	quiet.Lflag &^= unix.ECHO
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &quiet); err != nil {
		return nil, err
	}
	return func() { unix.IoctlSetTermios(fd, unix.TCSETS, old) }, nil
}

// toTerminal reports whether our output is a terminal's.
func (c *cli) toTerminal() bool {
	out, ok := c.stdout.(*os.File)
	return ok && isTerminal(out)
}

// sizes tells the size of a terminal at first and whenever it changes.
type sizes struct {
	ctx     context.Context
	f       *os.File
	changes chan os.Signal
}

func watchSize(ctx context.Context, f *os.File) *sizes {
	s := &sizes{ctx, f, make(chan os.Signal, 1)}
	s.changes <- unix.SIGWINCH // for the size at first
	signal.Notify(s.changes, unix.SIGWINCH)
	context.AfterFunc(ctx, func() { signal.Stop(s.changes) })
	return s
}

// Next waits for a size; nil is the end. It implements
// remotecommand.TerminalSizeQueue.
func (s *sizes) Next() *remotecommand.TerminalSize {
	for {
		select {
		case <-s.ctx.Done():
			return nil
		case <-s.changes:
			if ws, err := unix.IoctlGetWinsize(int(s.f.Fd()), unix.TIOCGWINSZ); err == nil {
				return &remotecommand.TerminalSize{Width: ws.Col, Height: ws.Row}
			}
		}
	}
}
