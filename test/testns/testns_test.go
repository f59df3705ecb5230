package testns

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { Main(m, Options{}) }

// plant makes TestThatLeaves leave one thing of each kind.
const plant = "CRISP_TEST_PLANT"

// Everything that a test leaves makes it fail, and is named.
func TestLeaksAreFound(t *testing.T) {
	if !Isolated() {
		t.Skip("needs root, and no systemd: there are no namespaces to look at")
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestThatLeaves$")
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, role+"=") }), plant+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("a test with leaks passed:\n%s", out)
	}
	for _, want := range []string{
		"--- FAIL: TestThatLeaves", "link planted", "address 192.0.2.1/32 of lo", "nft table ip planted", "cgroup /sys/fs/cgroup",
		"mount /run/planted #1", "file /run/planted", "(sleep) sleep 1000",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is not reported:\n%s", want, out)
		}
	}
}

// TestThatLeaves passes, unless plant makes it leave something.
func TestThatLeaves(t *testing.T) {
	if os.Getenv(plant) == "" {
		return
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "planted"
	check(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}))
	lo, err := netlink.LinkByName("lo")
	check(err)
	check(netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(32, 32)}}))
	out, err := exec.Command("nft", "add", "table", "ip", "planted").CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	all, err := hierarchies()
	check(err)
	check(os.Mkdir(filepath.Join(all[len(all)-1].dir, "planted"), 0o755))
	check(os.Mkdir("/run/planted", 0o755))
	check(unix.Mount("tmpfs", "/run/planted", "tmpfs", 0, ""))
	check(exec.Command("setsid", "-f", "sleep", "1000").Run())
}

// A test sees only itself and its init, and has a network like a node's.
func TestNamespaces(t *testing.T) {
	if !Isolated() {
		t.Skip("needs root, and no systemd: the tests run on the machine")
	}
	if os.Getppid() != 1 {
		t.Errorf("the parent is %d", os.Getppid())
	}
	others, _ := filepath.Glob("/proc/[0-9]*")
	if len(others) != 2 {
		t.Errorf("processes: %v", others)
	}
	if c, err := net.Dial("udp", "203.0.113.1:9"); err != nil {
		t.Errorf("no route out: %v", err)
	} else {
		c.Close()
	}
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if h := fmt.Sprint(parts[1:]); parts[2] != "/" && parts[1] != "hugetlb" {
			t.Errorf("cgroup %s", h)
		}
	}
}

// -run and -skip work as without namespaces.
func TestJobs(t *testing.T) {
	for _, tt := range []struct {
		parts []string
		want  string
	}{
		{[]string{"^TestA$", ""}, "^TestA$"},
		{[]string{"TestScript", "^pod$", ""}, "TestScript/^pod$"},
		{[]string{"TestScript", "^pod$", "deep"}, "TestScript/^pod$/deep"},
	} {
		if got := pattern(tt.parts...); got != tt.want {
			t.Errorf("%q: %q", tt.parts, got)
		}
	}
}
