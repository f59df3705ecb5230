package main

import (
	"net"
	"os"
)

// notify tells the service manager a state as sd_notify(3) does: a datagram to
// $NOTIFY_SOCKET. It is these lines instead of a library because they are all of it.
// Without a manager that listens it does nothing.
func notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	if path[0] == '@' { // the abstract namespace
		path = "\x00" + path[1:]
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = c.Write([]byte(state)) // nobody could be told of an error
}
