package main

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
	"k8s.io/client-go/tools/remotecommand"
)

// terminal returns the file of a stream if it is a terminal, else nil.
func terminal(stream any) *os.File {
	if f, ok := stream.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// sizes yields the size of a terminal at first and after each change.
type sizes struct {
	ctx     context.Context
	f       *os.File
	changes chan os.Signal
}

func watchSize(ctx context.Context, f *os.File) *sizes {
	s := &sizes{ctx, f, make(chan os.Signal, 1)}
	s.changes <- unix.SIGWINCH // for the initial size
	signal.Notify(s.changes, unix.SIGWINCH)
	context.AfterFunc(ctx, func() { signal.Stop(s.changes) })
	return s
}

// Next waits for a size; nil means the end. It implements remotecommand.TerminalSizeQueue.
func (s *sizes) Next() *remotecommand.TerminalSize {
	for {
		select {
		case <-s.ctx.Done():
			return nil
		case <-s.changes:
			if width, height, err := term.GetSize(int(s.f.Fd())); err == nil {
				return &remotecommand.TerminalSize{Width: uint16(width), Height: uint16(height)}
			}
		}
	}
}
