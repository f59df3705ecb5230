package network

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/crisp-cri/crisp/network/bridge"
)

// standardPlugins returns the directory in which make builds the standard plugins and crisp-bridge,
// or builds them for this run.
func standardPlugins(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("../bin/cni")
	if err != nil {
		t.Fatal(err)
	}
	if bin := os.Getenv("CRISP_BIN"); bin != "" {
		dir = filepath.Join(bin, "cni")
	}
	for _, name := range []string{"bridge", "host-local", "portmap", "bandwidth", bridge.Type} {
		if _, err = os.Stat(filepath.Join(dir, name)); err != nil {
			break
		}
	}
	if err == nil {
		return dir
	}
	dir = t.TempDir()
	const at = "github.com/containernetworking/plugins/plugins/"
	out, err := exec.Command("go", "build", "-o", dir, at+"main/bridge", at+"ipam/host-local", at+"meta/portmap", at+"meta/bandwidth", "../cmd/crisp-bridge").CombinedOutput()
	if err != nil {
		t.Fatalf("build plugins: %v\n%s", err, out)
	}
	return dir
}

// standardConf returns a configuration as an administrator would write it.
func standardConf(dataDir string, masquerade bool) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"standard","plugins":[
		{"type":"bridge","bridge":"br-test","isDefaultGateway":true,"hairpinMode":true,"ipMasq":%t,"ipMasqBackend":"nftables",
		 "ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.9.0.0/24"}],[{"subnet":"fd09::/64"}]]}},
		{"type":"portmap","capabilities":{"portMappings":true},"backend":"nftables"},
		{"type":"bandwidth","capabilities":{"bandwidth":true}}]}`, masquerade, dataDir)
}

// An administrator's configuration of the standard plugins works with all
// capabilities, in both families, and leaves nothing but portmap's empty table.
func TestStandardPlugins(t *testing.T) {
	needsRoot(t)
	world := outside(t)
	serve(t, world, 80)
	o := options(t, "")
	t.Cleanup(func() {
		nft(t, "flush ruleset") // portmap never removes its tables
		removeBridge(t, "br-test")
	})
	o.BinDirs = []string{standardPlugins(t)}
	writeConf(t, o.ConfDir, "10-standard.conflist", standardConf(o.DataDir, true))
	n := open(t, o)
	// STATUS of the plugins is called meanwhile.
	for deadline := time.Now().Add(time.Minute); n.Status() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not ready: %v", n.Status())
		}
	}
	path, unpin := namespace(t)
	a, b := pod(t, "a"), Pod{ID: "b", NetNS: path}
	a.Ports = []Port{{Protocol: "tcp", ContainerPort: 80, HostPort: 12000}}
	a.IngressBPS, a.EgressBPS = 100e6, 100e6
	ra, rb := attach(t, n, a), attach(t, n, b)
	serve(t, a.NetNS, 80)
	for i := range 2 {
		wantAsk(t, b.NetNS, netip.AddrPortFrom(ra.IPs[i], 80).String(), rb.IPs[i].String())
	}
	wantAsk(t, a.NetNS, "198.51.100.2:80", "198.51.100.1")
	wantAsk(t, "", "127.0.0.1:12000", "")
	wantAsk(t, a.NetNS, "198.51.100.1:12000", "")
	if err := n.Check(t.Context(), a); err != nil {
		t.Errorf("check: %v", err)
	}
	unpin()
	detach(t, n, b)
	if err := n.GC(t.Context(), nil); err != nil { // removes a
		t.Error(err)
	}
	if _, err := ask(t, "", "127.0.0.1:12000"); err == nil {
		t.Error("the host port answers after GC")
	}
}

// As a program, the default network's plugin works the same, for another runtime or a DEL by hand.
func TestBridgeAsProgram(t *testing.T) {
	o := options(t, "")
	n := open(t, o)
	c, err := n.usable()
	if err != nil {
		t.Fatal(err)
	}
	p := pod(t, "p")
	p.Ports = []Port{{Protocol: "tcp", ContainerPort: 80, HostPort: 12000}}
	rt := n.newAttachment(c, p).runtime()
	cni := libcni.NewCNIConfigWithCacheDir([]string{standardPlugins(t)}, o.CacheDir, nil)
	if _, err := cni.AddNetworkList(t.Context(), c.list, rt); err != nil {
		t.Fatal(err)
	}
	serve(t, p.NetNS, 80)
	wantAsk(t, "", "127.0.0.1:12000", "")
	for verb, run := range map[string]func() error{
		"VERSION": func() error { _, err := cni.ValidateNetworkList(t.Context(), c.list); return err },
		"CHECK":   func() error { return cni.CheckNetworkList(t.Context(), c.list, rt) },
		"STATUS":  func() error { return cni.GetStatusNetworkList(t.Context(), c.list) },
	} {
		if err := run(); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
	}
	for range 2 {
		if err := cni.DelNetworkList(t.Context(), c.list, rt); err != nil {
			t.Error(err)
		}
	}
	destroy(t, n)
}
