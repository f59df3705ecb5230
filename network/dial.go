package network

import (
	"context"
	"errors"
	"net"
	"strconv"
)

// Dial connects to port of localhost in the network namespace at path netns, ""
// for the host's: to 127.0.0.1 and, if nobody listens there, to ::1. The
// connection stays in that namespace; the caller may use it anywhere.
func Dial(ctx context.Context, netns string, port int32) (net.Conn, error) {
	var conn net.Conn
	err := enter(netns, func() error {
		var d net.Dialer
		var errs []error
		for _, host := range []string{"127.0.0.1", "::1"} {
			c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
			if err == nil {
				conn = c
				return nil
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	return conn, err
}
