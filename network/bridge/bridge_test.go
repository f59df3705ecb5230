package bridge

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/crisp-cri/crisp/internal/fault"
)

func prefixes(text ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range text {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

func addresses(text ...string) []netip.Addr {
	var all []netip.Addr
	for _, s := range text {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

// A configuration that cannot work is refused before anything is done, and the
// error names the fault.
func TestParseRefuses(t *testing.T) {
	const good = `{"cniVersion":"1.1.0","name":"net","type":"crisp-bridge","bridge":"br0","subnets":["10.1.0.0/24","fd00::/64"],"dataDir":"/d"}`
	if c, err := parse([]byte(good)); err != nil || c.Name != "net" || len(c.Subnets) != 2 || c.dir() != "/d/net" {
		t.Fatalf("parsed %+v (err %v)", c, err)
	}
	for _, change := range [][2]string{
		{`"net"`, `""`},
		{`"br0"`, `""`},
		{`"br0"`, `"a\";drop"`},
		{`"br0"`, `"sixteen-letters-"`},
		{`"/d"`, `""`},
		{`"10.1.0.0/24"`, `"10.1.0.1/24"`},
		{`"10.1.0.0/24"`, `"10.1.0.0/31"`},
		{`"10.1.0.0/24"`, `"fd01::/64"`},
		{`"10.1.0.0/24","fd00::/64"`, ``},
		{`"10.1.0.0/24"`, `"ten"`},
		{`}`, `,"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"x"}]}}`},
	} {
		text := strings.Replace(good, change[0], change[1], 1)
		if _, err := parse([]byte(text)); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A mapping with a host address is for the family of that address; everything that could become
// part of an nft command is checked.
func TestElements(t *testing.T) {
	addrs := addresses("10.1.0.2", "fd00::2")
	got, err := elements([]PortMapping{
		{HostPort: 80, ContainerPort: 8080, Protocol: "TCP"},
		{HostPort: 53, ContainerPort: 53, Protocol: "udp", HostIP: "192.0.2.1"},
		{HostPort: 54, ContainerPort: 53, Protocol: "udp", HostIP: "2001:db8::1"},
		{HostPort: 90, ContainerPort: 90, Protocol: "sctp", HostIP: "0.0.0.0"},
		{HostPort: 91, ContainerPort: 91, Protocol: "tcp", HostIP: "::"},
		{HostPort: 92, ContainerPort: 92, Protocol: "tcp", HostIP: "::ffff:127.0.0.1"},
	}, addrs)
	if err != nil {
		t.Fatal(err)
	}
	want := []element{
		{"any4", "tcp . 80", "10.1.0.2 . 8080"},
		{"any6", "tcp . 80", "fd00::2 . 8080"},
		{"one4", "192.0.2.1 . udp . 53", "10.1.0.2 . 53"},
		{"one6", "2001:db8::1 . udp . 54", "fd00::2 . 53"},
		{"any4", "sctp . 90", "10.1.0.2 . 90"},
		{"any6", "tcp . 91", "fd00::2 . 91"},
		{"one4", "127.0.0.1 . tcp . 92", "10.1.0.2 . 92"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// Two containers of a pod may request the same port: the API server treats an empty address and
	// 0.0.0.0 as different.
	got, err = elements([]PortMapping{
		{HostPort: 53, ContainerPort: 53, Protocol: "udp"},
		{HostPort: 53, ContainerPort: 53, Protocol: "UDP", HostIP: "0.0.0.0"},
		{HostPort: 53, ContainerPort: 53, Protocol: "udp", HostIP: "::"},
	}, addrs)
	if err != nil {
		t.Fatal(err)
	}
	want = []element{{"any4", "udp . 53", "10.1.0.2 . 53"}, {"any6", "udp . 53", "fd00::2 . 53"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []PortMapping{
		{HostPort: 80, ContainerPort: 80, Protocol: "icmp"},
		{HostPort: 80, ContainerPort: 80},
		{HostPort: 80, Protocol: "tcp"},
		{ContainerPort: 80, Protocol: "tcp"},
		{HostPort: 80, ContainerPort: 80, Protocol: "tcp", HostIP: "localhost"},
		{HostPort: 80, ContainerPort: 80, Protocol: "tcp", HostIP: "fe80::1%eth0"},
		{HostPort: 80, ContainerPort: 80, Protocol: "tcp", HostIP: "::1"},
	} {
		if _, err := elements([]PortMapping{bad}, addrs); !errors.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// Addresses are handed out in turn, without the special ones, and a released one
// comes last.
func TestAllocateInTurn(t *testing.T) {
	n := &Net{Name: "net", DataDir: t.TempDir(), Subnets: prefixes("10.1.0.0/29", "fd00::/125")}
	take := func(id string) string {
		t.Helper()
		addrs, err := n.allocate(t.Context(), id, "eth0")
		if err != nil {
			t.Fatal(err)
		}
		return addrs[0].String() + " " + addrs[1].String()
	}
	var got []string
	for _, id := range []string{"a", "b", "c"} {
		got = append(got, take(id))
	}
	if err := n.release(t.Context(), "a", nil); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"d", "e", "f"} { // IPv4 starts over
		got = append(got, take(id))
	}
	want := []string{"10.1.0.2 fd00::2", "10.1.0.3 fd00::3", "10.1.0.4 fd00::4", "10.1.0.5 fd00::5", "10.1.0.6 fd00::6", "10.1.0.2 fd00::7"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// IPv6 is full: the IPv4 address taken for this pod is released.
	n.Subnets = prefixes("10.2.0.0/24", "fd00::/125")
	take("g")
	before := names(t, n.dir())
	if addrs, err := n.allocate(t.Context(), "h", "eth0"); err == nil {
		t.Errorf("got %v of a full subnet", addrs)
	}
	if diff := cmp.Diff(before, names(t, n.dir())); diff != "" {
		t.Error(diff)
	}
}

// A release with an outdated result does not take addresses of others.
func TestReleaseKeepsOthers(t *testing.T) {
	n := &Net{Name: "net", DataDir: t.TempDir(), Subnets: prefixes("10.1.0.0/24")}
	a, err := n.allocate(t.Context(), "a", "eth0")
	if err != nil {
		t.Fatal(err)
	}
	for _, known := range [][]netip.Addr{a, nil} {
		if err := n.release(t.Context(), "b", known); err != nil {
			t.Fatal(err)
		}
		if owner, err := n.owner(a[0]); err != nil || owner != "a" {
			t.Errorf("%v belongs to %q (err %v)", a[0], owner, err)
		}
	}
	// Leftovers of other versions of host-local or of a power cut are harmless.
	for name, content := range map[string]string{"10.1.0.3": "", "10.1.0.4": "old-id", "last_reserved_ip.0": "nonsense"} {
		if err := os.WriteFile(filepath.Join(n.dir(), name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := n.allocate(t.Context(), "b", "eth0"); err != nil || b[0] != netip.MustParseAddr("10.1.0.5") {
		t.Errorf("got %v (err %v), want the first free address", b, err)
	}
	if err := n.release(t.Context(), "old-id", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := n.owner(netip.MustParseAddr("10.1.0.4")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the address in the old format is still allocated: %v", err)
	}
}

// A damaged file of one pod's ports does not keep other pods from theirs.
func TestDamagedPorts(t *testing.T) {
	n := &Net{Name: "net", DataDir: t.TempDir()}
	if err := os.MkdirAll(n.portsDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.portsPath("a"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if list, err := n.allElements(); err != nil || len(list) != 0 {
		t.Errorf("elements are %v (err %v)", list, err)
	}
	if err := n.conflict("b", []element{{Map: "any4", Key: "tcp . 80"}}); err != nil {
		t.Error(err)
	}
	if err := n.conflict("b", []element{{Map: "any4", Key: "tcp . 80"}, {Map: "any4", Key: "tcp . 80"}}); !errors.Is(err, fault.Exists) {
		t.Errorf("one port twice: %v", err)
	}
}

// The rules of different networks have different markers, so that a change of either rewrites the
// table.
func TestMarker(t *testing.T) {
	a := Net{Name: "net", Bridge: "br0", Subnets: prefixes("10.1.0.0/24")}
	b := a
	b.Subnets = prefixes("10.2.0.0/24")
	if a.marker() == b.marker() || len(a.marker()) > 31 {
		t.Errorf("markers are %s and %s", a.marker(), b.marker())
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestWidest(t *testing.T) {
	for _, test := range [][2][]netip.Prefix{
		{prefixes("10.1.0.0/16"), prefixes("10.1.0.0/16")},
		{prefixes("10.1.0.0/16", "fd00::/64", "10.1.16.0/20"), prefixes("10.1.0.0/16", "fd00::/64")},
		{prefixes("10.1.16.0/20", "10.1.32.0/20", "10.1.0.0/16"), prefixes("10.1.0.0/16")},
		{prefixes("10.1.0.0/16", "10.1.0.0/16", "10.2.0.0/16"), prefixes("10.1.0.0/16", "10.2.0.0/16")},
	} {
		if got := widest(test[0]); !slices.Equal(got, test[1]) {
			t.Errorf("of %v: %v, want %v", test[0], got, test[1])
		}
	}
}
