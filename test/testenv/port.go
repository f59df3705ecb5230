package testenv

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
)

var ports atomic.Uint32 // how many FreePort has tried

// FreePort returns an address on loopback for a server that starts later. Its port is below those
// that the kernel gives to whoever listens on port 0 (ip_local_port_range), who could have it by
// then, and other processes get others.
func FreePort(t testing.TB) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 20000+os.Getpid()%120*100+int(ports.Add(1)%100))
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			return address
		}
	}
	t.Fatal("no port of a hundred is free")
	return ""
}
