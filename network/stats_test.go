package network

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	vishnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/network/netns"
)

// readCounters reads the counters of a namespace once.
func readCounters(path string) ([]InterfaceStats, error) {
	c, err := OpenCounters(path)
	if err != nil {
		return nil, err
	}
	list, err := c.Read()
	return list, errors.Join(err, c.Close())
}

func TestParseDev(t *testing.T) {
	text := `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 6468610   14009    0    0    0     0          0         0  6468610   14009    0    0    0     0       0          0
  eth0:18446744073709551615 2 3 4 0 0 0 9 11 12 13 14 0 0 0 0
eth0.100: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
 short: 1 2 3
  long: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17
 words: 1 2 3 x 5 6 7 8 9 10 11 12 13 14 15 16
`
	want := []InterfaceStats{
		{Name: "eth0", RxBytes: 1<<64 - 1, RxPackets: 2, RxErrors: 3, RxDropped: 4, TxBytes: 11, TxPackets: 12, TxErrors: 13, TxDropped: 14},
		{Name: "eth0.100", RxBytes: 1, RxPackets: 2, RxErrors: 3, RxDropped: 4, TxBytes: 9, TxPackets: 10, TxErrors: 11, TxDropped: 12},
	}
	if diff := cmp.Diff(want, parseDev([]byte(text))); diff != "" {
		t.Error(diff)
	}
	if got := parseDev(nil); got != nil {
		t.Errorf("an empty file has %v", got)
	}
}

// Open counters follow the changes in their namespace, equal netlink's, and are complete even if
// the kernel needs several pages for them.
func TestCounters(t *testing.T) {
	needsRoot(t)
	path, _ := namespace(t)
	c, err := OpenCounters(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if list, err := c.Read(); err != nil || len(list) != 0 {
		t.Errorf("a new namespace has %v (err %v)", list, err)
	}
	err = netns.Enter(path, func() error {
		for i := range 100 {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = fmt.Sprint("mine", i)
			if err := netlink.LinkAdd(&netlink.Ifb{LinkAttrs: attrs}); err != nil {
				return err
			}
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Flags = "one", 1
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "two"}); err != nil {
			return err
		}
		two, err := netlink.LinkByName("two")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(two); err != nil {
			return err
		}
		return send("two")
	})
	if err != nil {
		t.Fatal(err)
	}
	list, err := c.Read()
	if err != nil || len(list) != 102 {
		t.Fatalf("%d interfaces (err %v)", len(list), err)
	}
	byName := map[string]InterfaceStats{}
	for _, s := range list {
		byName[s.Name] = s
	}
	if one, two := byName["one"], byName["two"]; one.RxBytes < 1000 || one.RxPackets == 0 || two.TxBytes != one.RxBytes || two.TxPackets != one.RxPackets {
		t.Errorf("one has %+v, two %+v", one, two)
	}
}

// send sends an Ethernet frame of 1000 bytes from an interface (packet(7)).
func send(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, make([]byte, 1000), 0, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index})
}

// A namespace that only its open counters keep alive ends when they are closed, and not before.
func TestCountersHoldNamespace(t *testing.T) {
	needsRoot(t)
	path, unpin := namespace(t)
	name := fmt.Sprintf("held%d", os.Getpid()%100000)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	ns, err := vishnetns.GetFromPath(path)
	if err != nil {
		t.Fatal(err)
	}
	err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(ns))})
	if err := errors.Join(err, ns.Close()); err != nil {
		t.Fatal(err)
	}
	c, err := OpenCounters(path)
	if err != nil {
		t.Fatal(err)
	}
	unpin()
	if list, err := c.Read(); err != nil || len(list) != 1 || list[0].Name != "eth0" {
		t.Errorf("counters are %v (err %v)", list, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if !strings.Contains(strings.Join(linkNames(t), " "), name) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the namespace is still there")
		}
	}
}

// BenchmarkCounters reads the counters of a pod's namespace.
func BenchmarkCounters(b *testing.B) {
	needsRoot(b)
	path, _ := namespace(b)
	c, err := OpenCounters(path)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	for b.Loop() {
		if _, err := c.Read(); err != nil {
			b.Fatal(err)
		}
	}
}
