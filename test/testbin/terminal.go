package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// awaitSize waits until the terminal on stdin has a size, in characters.
func awaitSize(width, height int) {
	for {
		size, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ)
		check(err)
		if int(size.Col) == width && int(size.Row) == height {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
