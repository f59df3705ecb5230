package network

import (
	"context"
	"errors"
	"net"
	"strconv"

	"github.com/crisp-cri/crisp/network/netns"
)

// Dial connects to port of localhost in the network namespace at path ("" means
// the host's): to 127.0.0.1 and, if nothing listens there, to ::1. The
// connection stays in that namespace; the caller may use it anywhere.
func Dial(ctx context.Context, path string, port int32) (net.Conn, error) {
	var conn net.Conn
	err := netns.Enter(path, func() error {
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
