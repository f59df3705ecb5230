package network

import (
	"net"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/network/netns"
)

// A client that has sent to a UDP host port before there was a pod gets an answer once there is
// one: conntrack must not keep the old flow.
func TestUDPHostPortWithEarlyClient(t *testing.T) {
	needsRoot(t)
	world := outside(t)
	n := open(t, options(t, ""))
	other := pod(t, "other")
	attach(t, n, other) // the host tracks connections from now on

	var client net.Conn
	err := netns.Enter(world, func() (err error) {
		client, err = net.Dial("udp", "198.51.100.1:12053")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	client.Write([]byte("anybody?"))

	p := pod(t, "dns")
	p.Ports = []Port{{Protocol: "udp", ContainerPort: 53, HostPort: 12053}}
	attach(t, n, p)
	var server net.PacketConn
	err = netns.Enter(p.NetNS, func() (err error) {
		server, err = net.ListenPacket("udp", ":53")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		buf := make([]byte, 64)
		for {
			size, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			server.WriteTo(buf[:size], from)
		}
	}()
	answered := false
	for range 50 {
		client.Write([]byte("hello"))
		client.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		buf := make([]byte, 64)
		if size, err := client.Read(buf); err == nil && string(buf[:size]) == "hello" {
			answered = true
			break
		}
	}
	if !answered {
		t.Error("no answer")
	}
	detach(t, n, p)
	detach(t, n, other)
	destroy(t, n)
}
