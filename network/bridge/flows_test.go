package bridge

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// udpPorts parses the UDP ports in the output of elements.
func TestUDPPorts(t *testing.T) {
	list, err := elements([]PortMapping{
		{HostPort: 53, ContainerPort: 5353, Protocol: "UDP"},
		{HostPort: 54, ContainerPort: 54, Protocol: "udp", HostIP: "::"},
		{HostPort: 55, ContainerPort: 55, Protocol: "udp", HostIP: "192.0.2.1"},
		{HostPort: 56, ContainerPort: 56, Protocol: "tcp"},
	}, []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00::2")})
	if err != nil {
		t.Fatal(err)
	}
	want := []udpPort{
		{port: 53, pod: netip.MustParseAddrPort("10.1.0.2:5353")},
		{port: 53, pod: netip.MustParseAddrPort("[fd00::2]:5353")},
		{port: 54, pod: netip.MustParseAddrPort("[fd00::2]:54")},
		{host: netip.MustParseAddr("192.0.2.1"), port: 55, pod: netip.MustParseAddrPort("10.1.0.2:55")},
	}
	if diff := cmp.Diff(want, udpPorts(list), cmp.AllowUnexported(udpPort{}), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); diff != "" {
		t.Error(diff)
	}
	if got := udpPorts([]element{{}, {Map: "any4", Key: "udp . x", Value: "10.1.0.2 . 1"}, {Key: "udp . 1", Value: "here . 1"}}); len(got) > 0 {
		t.Errorf("damaged elements are %v", got)
	}
}

// A kernel without conntrack's netlink interface does not prevent pods from being attached and
// detached, and the log reports it once.
func TestKernelWithoutFlows(t *testing.T) {
	var log bytes.Buffer
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer func() { listFlows = conntrackFlows }()
	listFlows = func(map[int]*nl.SocketHandle, func([]byte, flow)) error { return unix.EPROTONOSUPPORT }
	sayOnce = sync.Once{} // if the test runs several times
	ports := []element{{Map: "any4", Key: "udp . 53", Value: "10.1.0.2 . 53"}}
	for range 3 {
		dropStaleFlows(t.Context(), ports)
		dropFlowsTo(t.Context(), ports)
	}
	if got := strings.Count(log.String(), unix.EPROTONOSUPPORT.Error()); got != 1 {
		t.Errorf("the log has it %d times:\n%s", got, log.String())
	}
}

// The kernel's flows are only read for pods with UDP ports.
func TestNoFlowsForOthers(t *testing.T) {
	defer func() { listFlows = conntrackFlows }()
	listFlows = func(map[int]*nl.SocketHandle, func([]byte, flow)) error {
		t.Error("asked for the flows")
		return errors.ErrUnsupported
	}
	ports := []element{{Map: "any4", Key: "tcp . 53", Value: "10.1.0.2 . 53"}}
	dropStaleFlows(t.Context(), ports)
	dropFlowsTo(t.Context(), ports)
}
