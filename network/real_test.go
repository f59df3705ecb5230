package network

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/network/netns"
	"github.com/crisp-cri/crisp/test/testenv"
	"github.com/crisp-cri/crisp/test/testns"
)

// Tests that use the kernel run in a network namespace of their own, which stands for the host:
// they flush rules and replace the default route.
func TestMain(m *testing.M) {
	// Go checks once whether there is IPv6; it must not do so in a pod.
	if l, err := net.Listen("tcp", ":0"); err == nil {
		l.Close()
	}
	testns.Main(m, testns.Options{OwnNetwork: true})
}

// However the tests are run, they do not run in the network namespace that they are started in.
func TestMachineIsNotTouched(t *testing.T) {
	needsRoot(t)
	names := func(args ...string) string {
		cmd := exec.Command("/proc/self/exe", append(args, "-test.run=^TestNamesItsNetwork$", "-test.v")...)
		cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "CRISP_TEST_NAMESPACE_ROLE=") })
		cmd.Env = append(cmd.Env, "CRISP_TEST_NAMESPACES=off")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		_, name, ok := strings.Cut(string(out), "network: ")
		if !ok {
			t.Fatalf("no network is named: %s", out)
		}
		name, _, _ = strings.Cut(name, "\n")
		return name
	}
	here, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {"-test.bench=^$"}} {
		if got := names(args...); got == here {
			t.Errorf("%v: tests run in the network namespace they were started in", args)
		}
	}
}

func TestNamesItsNetwork(t *testing.T) {
	name, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Log("network:", name)
}

func needsRoot(t testing.TB) {
	t.Helper()
	testenv.NeedRoot(t, "it makes networks")
}

// options returns the options of a new instance. Nothing of it may be left when the test ends.
func options(t testing.TB, instance string) Options {
	t.Helper()
	needsRoot(t)
	root := t.TempDir()
	o := Options{
		ConfDir: filepath.Join(root, "net.d"), DefaultDir: filepath.Join(root, "net.d"),
		CacheDir: filepath.Join(root, "cache"), DataDir: filepath.Join(root, "ipam"),
		Instance: instance,
		Log:      slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	links, tables := linkNames(t), ruleset(t)
	t.Cleanup(func() { noLeaks(t, o, links, tables) })
	return o
}

func open(t testing.TB, o Options) *Network {
	t.Helper()
	n, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func noLeaks(t testing.TB, o Options, links []string, tables string) {
	t.Helper()
	// The devices of a removed namespace are removed in the background.
	for range 6000 { // a minute
		if slices.Equal(linkNames(t), links) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if got := linkNames(t); !slices.Equal(got, links) {
		t.Errorf("links are %v, were %v", got, links)
	}
	if got := ruleset(t); got != tables {
		t.Errorf("nftables are\n%s\nwere\n%s", got, tables)
	}
	for _, dir := range []string{filepath.Join(o.CacheDir, attachedDir), filepath.Join(o.CacheDir, "results")} {
		if entries, _ := os.ReadDir(dir); len(entries) > 0 {
			t.Errorf("%s has %v", dir, entries)
		}
	}
	if got := addressesInUse(o); len(got) > 0 {
		t.Errorf("addresses %v are not released", got)
	}
	var own unix.Stat_t
	unix.Stat("/proc/self/ns/net", &own)
	threads, _ := filepath.Glob("/proc/self/task/*/ns/net")
	for _, path := range threads {
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil && st.Ino != own.Ino {
			t.Errorf("thread %s is in another network namespace", path)
		}
	}
}

func addressesInUse(o Options) []string {
	var used []string
	files, _ := filepath.Glob(filepath.Join(o.DataDir, "*", "*"))
	for _, f := range files {
		if _, err := netip.ParseAddr(filepath.Base(f)); err == nil {
			used = append(used, filepath.Base(f))
		}
	}
	return used
}

func linkNames(t testing.TB) []string {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Attrs().Name)
	}
	slices.Sort(names)
	return names
}

func ruleset(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	return string(out)
}

// namespace makes a network namespace pinned at the returned path, and returns an undo that may be
// called early.
func namespace(t testing.TB) (path string, unpin func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "net")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	host, err := vns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	made, err := vns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	err = unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, "")
	if err := errors.Join(err, vns.Set(host)); err != nil {
		t.Fatal(err)
	}
	unpin = func() { unix.Unmount(path, unix.MNT_DETACH) }
	t.Cleanup(unpin)
	return path, unpin
}

// pod returns a Pod in a new namespace.
func pod(t testing.TB, id string) Pod {
	path, _ := namespace(t)
	return Pod{ID: id, Name: "web", Namespace: "default", UID: "uid-" + id, NetNS: path}
}

func attach(t testing.TB, n *Network, p Pod) Result {
	t.Helper()
	r, err := n.Attach(t.Context(), p)
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	return r
}

func detach(t testing.TB, n *Network, p Pod) {
	t.Helper()
	if err := n.Detach(t.Context(), p); err != nil {
		t.Errorf("detach: %v", err)
	}
}

func destroy(t testing.TB, n *Network) {
	t.Helper()
	if err := n.Destroy(t.Context()); err != nil {
		t.Errorf("destroy: %v", err)
	}
}

// serve answers each connection to port in the namespace with the client's address, until the test
// ends.
func serve(t *testing.T, path string, port int) {
	t.Helper()
	serveOn(t, path, fmt.Sprintf(":%d", port))
}

func serveOn(t *testing.T, path, addr string) {
	t.Helper()
	var l net.Listener
	err := netns.Enter(path, func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, c.RemoteAddr().String()+"\n")
			c.Close()
		}
	}()
}

// ask connects to addr from the namespace and returns the client address that the server has seen.
func ask(t *testing.T, from, addr string) (netip.Addr, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var c net.Conn
	err := netns.Enter(from, func() (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		return err
	})
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return netip.Addr{}, err
	}
	seen, err := netip.ParseAddrPort(strings.TrimSpace(line))
	return seen.Addr().Unmap(), err
}

// wantAsk fails the test unless addr answers and has seen the client address want ("" for any).
func wantAsk(t *testing.T, from, addr, want string) {
	t.Helper()
	got, err := ask(t, from, addr)
	if err != nil {
		t.Errorf("from %q to %s: %v", from, addr, err)
	} else if want != "" && got.String() != want {
		t.Errorf("from %q to %s: seen as %v, want %s", from, addr, got, want)
	}
}

// outside makes a namespace that stands for a neighbour of the host: 198.51.100.2 and 2001:db8::2;
// the host is .1 and ::1.
func outside(t *testing.T) string {
	t.Helper()
	path, _ := namespace(t)
	h, err := vns.GetFromPath(path)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "uplink"
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "uplink", PeerNamespace: netlink.NsFd(h)}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	up := func(last string) func() error {
		return func() error {
			link, err := netlink.LinkByName("uplink")
			if err != nil {
				return err
			}
			for _, cidr := range []string{"198.51.100." + last + "/24", "2001:db8::" + last + "/64"} {
				addr, err := netlink.ParseAddr(cidr)
				if err != nil {
					return err
				}
				addr.Flags = unix.IFA_F_NODAD
				if err := netlink.AddrAdd(link, addr); err != nil {
					return err
				}
			}
			return netlink.LinkSetUp(link)
		}
	}
	if err := up("1")(); err != nil {
		t.Fatal(err)
	}
	if err := netns.Enter(path, up("2")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlink.LinkDel(veth) })
	return path
}

func unpinPath(t testing.TB, path string) {
	t.Helper()
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		t.Error(err)
	}
}

func nft(t testing.TB, command string) {
	t.Helper()
	if out, err := exec.Command("nft", command).CombinedOutput(); err != nil {
		t.Fatalf("nft %s: %v: %s", command, err, out)
	}
}
