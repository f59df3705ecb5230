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

	client := dialUDP(t, world)
	client.Write([]byte("anybody?"))

	p := pod(t, "dns")
	p.Ports = []Port{{Protocol: "udp", ContainerPort: 53, HostPort: 12053}}
	attach(t, n, p)
	echoUDP(t, p.NetNS, ":53", "")
	if !answered(client, "hello", "hello") {
		t.Error("no answer")
	}
	detach(t, n, p)
	detach(t, n, other)
	destroy(t, n)
}

// A client that started while the rules were gone gets its answers once they are back, and so does
// one that started before.
func TestUDPHostPortAfterAFlush(t *testing.T) {
	needsRoot(t)
	world := outside(t)
	n := open(t, options(t, ""))
	p := pod(t, "dns")
	p.Ports = []Port{{Protocol: "udp", ContainerPort: 53, HostPort: 12053}}
	attach(t, n, p)
	echoUDP(t, p.NetNS, ":53", "")
	early := dialUDP(t, world)
	if !answered(early, "early", "early") {
		t.Fatal("no answer before the flush")
	}
	// Other programs' rules return first, and the host continues to track and translate.
	nft(t, `flush ruleset; table ip others {
		chain pre { type nat hook prerouting priority 0; }
		chain post { type nat hook postrouting priority 0; oifname other masquerade; }
	}`)
	late := dialUDP(t, world)
	late.Write([]byte("anybody?"))
	late.SetReadDeadline(time.Now().Add(time.Second))
	late.Read(make([]byte, 1)) // the host's refusal
	n.heal(t.Context())
	for name, client := range map[string]net.Conn{"early": early, "late": late} {
		if !answered(client, name, name) {
			t.Errorf("no answer to the %s client", name)
		}
	}
	detach(t, n, p)
	destroy(t, n)
	nft(t, "delete table ip others")
}

// After a pod is gone, a client that keeps sending reaches the next owner of the port.
func TestUDPHostPortOfAPodThatIsGone(t *testing.T) {
	needsRoot(t)
	world := outside(t)
	n := open(t, options(t, ""))
	other, p := pod(t, "other"), pod(t, "dns")
	attach(t, n, other)
	p.Ports = []Port{{Protocol: "udp", ContainerPort: 53, HostPort: 12053}}
	attach(t, n, p)
	echoUDP(t, p.NetNS, ":53", "pod ")
	client := dialUDP(t, world)
	if !answered(client, "hello", "pod hello") {
		t.Fatal("no answer from the pod")
	}
	echoUDP(t, "", ":12053", "host ")
	detach(t, n, p)
	if !answered(client, "hello", "host hello") {
		t.Error("no answer from the host")
	}
	detach(t, n, other)
	destroy(t, n)
}

// dialUDP returns a client of UDP port 12053 of the host.
func dialUDP(t *testing.T, from string) (client net.Conn) {
	t.Helper()
	err := netns.Enter(from, func() (err error) {
		client, err = net.Dial("udp", "198.51.100.1:12053")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// answered sends text until it gets want back, at most 50 times.
func answered(client net.Conn, text, want string) bool {
	for range 50 {
		client.Write([]byte(text))
		client.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		buf := make([]byte, 64)
		if size, err := client.Read(buf); err == nil && string(buf[:size]) == want {
			return true
		}
	}
	return false
}

// echoUDP answers each packet to addr in the namespace with prefix and its text, until the test ends.
func echoUDP(t *testing.T, path, addr, prefix string) {
	t.Helper()
	var server net.PacketConn
	err := netns.Enter(path, func() (err error) {
		server, err = net.ListenPacket("udp", addr)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	go func() {
		buf := make([]byte, 64)
		for {
			size, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			server.WriteTo(append([]byte(prefix), buf[:size]...), from)
		}
	}()
}
