package network

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/oddfiles"
)

func writeConf(t testing.TB, dir, name, text string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func script(t testing.TB, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func removeBridge(t testing.TB, name string) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// unpinAll unpins the namespaces before the test looks for leftovers.
func unpinAll(t *testing.T, pods ...Pod) {
	t.Helper()
	for _, p := range pods {
		unpinPath(t, p.NetNS)
	}
}

// fresh opens a Network with directories of its own, for tests that need no root. Its
// plugin directory has one plugin, called "some".
func fresh(t testing.TB, defaultNetwork bool) (*Network, Options) {
	t.Helper()
	root := t.TempDir()
	o := Options{
		ConfDir: filepath.Join(root, "cni", "net.d"), BinDirs: []string{filepath.Join(root, "bin")},
		CacheDir: filepath.Join(root, "cache"), DataDir: filepath.Join(root, "ipam"),
	}
	if defaultNetwork {
		o.DefaultDir = filepath.Join(root, "default")
	}
	if err := os.Mkdir(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	script(t, filepath.Join(root, "bin"), "some", "\nexit 0")
	return open(t, o), o
}

func conflist(name, plugin string) string {
	return `{"cniVersion":"1.0.0","name":"` + name + `","plugins":[{"type":"` + plugin + `"}]}`
}

// waitConf waits until the configuration is as wanted, without a call that reads
// the directory: the watch must have seen it.
func waitConf(t *testing.T, n *Network, what string, want func(*conf) bool) {
	t.Helper()
	for range 2 * int(poll/(10*time.Millisecond)) {
		if want(n.current.Load()) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not seen: %s", what)
}

// NetworkReady follows the configuration directory while it and its parents are created, changed,
// removed and created again.
func TestDirectoryIsFollowed(t *testing.T) {
	n, o := fresh(t, false)
	if err := n.Status(); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), o.ConfDir) {
		t.Fatalf("status without a directory: %v", err)
	}
	uses := func(name string) func(*conf) bool {
		return func(c *conf) bool { return c.list != nil && c.list.Name == name }
	}
	none := func(c *conf) bool { return c.list == nil }
	for range 2 {
		writeConf(t, o.ConfDir, "20-b.conflist", conflist("b", "some"))
		waitConf(t, n, "a directory with a file", uses("b"))
		writeConf(t, o.ConfDir, "10-a.conf", `{"cniVersion":"0.4.0","name":"a","type":"some"}`)
		waitConf(t, n, "a file that comes first", uses("a"))
		if err := n.Status(); err != nil {
			t.Errorf("status: %v", err)
		}
		if err := os.Remove(filepath.Join(o.ConfDir, "10-a.conf")); err != nil {
			t.Fatal(err)
		}
		waitConf(t, n, "the removal of the first file", uses("b"))
		if err := os.RemoveAll(filepath.Dir(o.ConfDir)); err != nil {
			t.Fatal(err)
		}
		waitConf(t, n, "the removal of the directory", none)
	}
}

// A bad file is skipped if there is a good one; otherwise the error names it.
func TestBadFile(t *testing.T) {
	n, o := fresh(t, true)
	for name, text := range map[string]string{
		"00-json.conflist":    `{"cniVersion":`,
		"01-empty.conflist":   ``,
		"02-unnamed.conflist": `{"cniVersion":"1.0.0","plugins":[{"type":"some"}]}`,
		"03-none.conflist":    `{"cniVersion":"1.0.0","name":"x","plugins":[]}`,
		"04-future.conflist":  `{"cniVersion":"7.0.0","name":"x","plugins":[{"type":"some"}]}`,
		"05-name.conflist":    `{"cniVersion":"1.0.0","name":"../x","plugins":[{"type":"some"}]}`,
		"06-type.conf":        `{"cniVersion":"1.0.0","name":"x"}`,
		"07-type.conflist":    `{"cniVersion":"1.0.0","name":"x","plugins":[{}]}`,
	} {
		bad := writeConf(t, o.ConfDir, name, text)
		n.load()
		err := n.Status()
		if !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), bad) {
			t.Errorf("status with %s: %v", name, err)
		}
		if _, err := n.Attach(t.Context(), Pod{ID: "x", NetNS: "/x"}); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), bad) {
			t.Errorf("attach with %s: %v", name, err)
		}
		good := writeConf(t, o.ConfDir, "50-good.conflist", conflist("good", "some"))
		n.load()
		if err := n.Status(); err != nil {
			t.Errorf("status with a good file after %s: %v", name, err)
		}
		if err := errors.Join(os.Remove(bad), os.Remove(good)); err != nil {
			t.Fatal(err)
		}
	}
}

// Whatever is where a configuration file could be, it stops nothing beside a good file, and alone is
// named.
func TestOddFile(t *testing.T) {
	n, o := fresh(t, true)
	for _, name := range []string{"10-odd.conflist", "10-odd.conf", "of/10-odd.conf"} {
		odd := filepath.Join(o.ConfDir, name)
		if err := os.MkdirAll(filepath.Dir(odd), 0o755); err != nil {
			t.Fatal(err)
		}
		list := ""
		if filepath.Dir(name) == "of" { // the list's plugins are there
			list = writeConf(t, o.ConfDir, "10-list.conflist", `{"cniVersion":"1.1.0","name":"of"}`)
		}
		oddfiles.Each(t, odd, func(kind string) {
			n.load()
			named := odd
			if kind == "directory" { // as if it were not there
				named = list
			}
			if err := n.Status(); named != "" && (!errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), named)) {
				t.Errorf("status with a %s at %s: %v", kind, name, err)
			}
			good := writeConf(t, o.ConfDir, "50-good.conflist", conflist("good", "some"))
			n.load()
			if err := n.Status(); err != nil {
				t.Errorf("status with a good file after a %s at %s: %v", kind, name, err)
			}
			if err := os.Remove(good); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A network without its plugin is not ready, and the error names the plugin.
func TestMissingPlugin(t *testing.T) {
	n, o := fresh(t, false)
	writeConf(t, o.ConfDir, "10-a.conflist", conflist("a", "absent"))
	n.load()
	if err := n.Status(); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), `"absent"`) {
		t.Errorf("status: %v", err)
	}
}

// Status returns what the default network lacks before the first pod comes.
func TestDefaultNetworkNeedsNft(t *testing.T) {
	n, _ := fresh(t, true)
	t.Setenv("PATH", t.TempDir())
	if err := n.Status(); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "nft") {
		t.Errorf("status: %v", err)
	}
}

// Plugins of CNI 1.1 report whether they are ready.
func TestStatusVerb(t *testing.T) {
	n, o := fresh(t, false)
	n.cancel()
	<-n.ended // from here on only the test asks the plugins
	script(t, o.BinDirs[0], "moody", `
[ -e `+o.BinDirs[0]+`/well ] || { echo '{"code":50,"msg":"no lease yet"}'; exit 1; }`)
	writeConf(t, o.ConfDir, "10-a.conflist", `{"cniVersion":"1.1.0","name":"a","plugins":[{"type":"moody"}]}`)
	n.load()
	n.askPlugins(t.Context())
	if err := n.Status(); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "no lease yet") {
		t.Errorf("status: %v", err)
	}
	script(t, o.BinDirs[0], "well", "")
	n.askPlugins(t.Context())
	if err := n.Status(); err != nil {
		t.Errorf("status: %v", err)
	}
}

// When the agent behind a plugin restarts, the node stays ready unless that takes long.
func TestPluginsAgentRestarts(t *testing.T) {
	n, o := fresh(t, false)
	n.cancel()
	<-n.ended // from here on only the test asks the plugins
	script(t, o.BinDirs[0], "moody", `
[ -e `+o.BinDirs[0]+`/well ] || { echo '{"code":50,"msg":"agent does not answer"}'; exit 1; }`)
	well := filepath.Join(o.BinDirs[0], "well")
	script(t, o.BinDirs[0], "well", "")
	writeConf(t, o.ConfDir, "10-a.conflist", `{"cniVersion":"1.1.0","name":"a","plugins":[{"type":"moody"}]}`)
	n.load()
	h := n.current.Load().plugins
	n.askPlugins(t.Context())
	if err := os.Remove(well); err != nil {
		t.Fatal(err)
	}
	n.askPlugins(t.Context())
	if err := n.Status(); err != nil {
		t.Errorf("status while the agent restarts: %v", err)
	}
	h.failing = h.failing.Add(-statusGrace)
	n.askPlugins(t.Context())
	if err := n.Status(); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "agent does not answer") {
		t.Errorf("status when the agent does not come back: %v", err)
	}
	script(t, o.BinDirs[0], "well", "")
	n.askPlugins(t.Context())
	if err := n.Status(); err != nil {
		t.Errorf("status when the agent is back: %v", err)
	}
}

// While an installer slowly overwrites the file in use, no pod gets the next file's
// network. A file that stays bad is skipped.
func TestFileInUseIsWrittenInPlace(t *testing.T) {
	n, o := fresh(t, false)
	writeConf(t, o.ConfDir, "10-a.conflist", conflist("a", "some"))
	writeConf(t, o.ConfDir, "87-b.conflist", conflist("b", "some"))
	inUse := func(when, want string) {
		t.Helper()
		n.load()
		if c := n.current.Load(); c.list == nil || c.list.Name != want {
			t.Errorf("%s: the network is %+v, want %s", when, c.list, want)
		}
	}
	inUse("at first", "a")
	writeConf(t, o.ConfDir, "10-a.conflist", conflist("a", "some")[:20])
	inUse("half written", "a")
	writeConf(t, o.ConfDir, "10-a.conflist", conflist("c", "some"))
	inUse("written", "c")
	writeConf(t, o.ConfDir, "10-a.conflist", "{")
	inUse("half written again", "c")
	n.loading.Lock()
	n.badSince = n.badSince.Add(-writeGrace)
	n.loading.Unlock()
	inUse("bad for long", "b")
	if err := os.Remove(filepath.Join(o.ConfDir, "87-b.conflist")); err != nil {
		t.Fatal(err)
	}
	n.load()
	if c := n.current.Load(); c.list != nil {
		t.Errorf("a removed file is still used: %+v", c.list)
	}
}

// Plugins in separate files are part of the configuration that is kept for DEL.
func TestPluginsInFilesOfTheirOwn(t *testing.T) {
	dir := t.TempDir()
	path := writeConf(t, dir, "10-a.conflist", `{"cniVersion":"1.1.0","name":"a","plugins":[{"type":"first"}]}`)
	writeConf(t, filepath.Join(dir, "a"), "20.conf", `{"type":"second"}`)
	list, err := parse(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := libcni.NetworkConfFromBytes(list.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Plugins) != 2 || len(again.Plugins) != 2 || again.Plugins[1].Network.Type != "second" {
		t.Errorf("plugins are %v, and %v after a restart", len(list.Plugins), len(again.Plugins))
	}
}

// The default network is used if and only if there is no other configuration, and keeps its
// subnets.
func TestDefaultNetworkIsChosen(t *testing.T) {
	n, o := fresh(t, true)
	c, err := n.usable()
	if err != nil {
		t.Fatal(err)
	}
	first := c.ours
	if first == nil || c.list.Name != "crisp" {
		t.Fatalf("network is %v", c.list)
	}
	other := writeConf(t, o.ConfDir, "10-a.conflist", conflist("a", "some"))
	if c = n.load(); c.ours != nil || c.list.Name != "a" {
		t.Errorf("network is %v, want a", c.list.Name)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	if c = n.load(); c.ours == nil || !equalSubnets(c.ours.Subnets, first.Subnets) {
		t.Errorf("default network is %+v, was %+v", c.ours, first)
	}
	// The file was edited, and configured subnets take precedence over it.
	writeConf(t, o.DefaultDir, defaultFile, "{")
	if c = n.load(); c.ours == nil || c.err != nil {
		t.Errorf("default network is not restored: %v", c.err)
	}
	o.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("fd01::/64"), netip.MustParsePrefix("192.168.7.0/24")}
	n2 := open(t, o)
	if c, err = n2.usable(); err != nil || !equalSubnets(c.ours.Subnets, o.PodCIDRs) {
		t.Errorf("default network is %+v (err %v)", c.ours, err)
	}
}

// As soon as another network is awaited, pods do not get the default one, without any change to the
// directory; pods attached to it can still be detached.
func TestAnotherNetworkIsAwaited(t *testing.T) {
	o := options(t, "")
	why := ""
	o.Awaited = func() string { return why }
	n := open(t, o)
	early := pod(t, "early")
	attach(t, n, early)
	why = "somebody brings one"
	if err := n.Status(); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), o.ConfDir) {
		t.Errorf("status: %v", err)
	}
	late := pod(t, "late")
	if _, err := n.Attach(t.Context(), late); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), why) {
		t.Errorf("attach: %v", err)
	}
	detach(t, n, early)
	why = ""
	if err := n.Status(); err != nil {
		t.Errorf("status when no other network is awaited any more: %v", err)
	}
	attach(t, n, late)
	detach(t, n, late)
	destroy(t, n)
}

func equalSubnets(a, b []netip.Prefix) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
