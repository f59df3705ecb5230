package network

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A node's other runtime has pods in the network of the configuration directory, and
// its plugins know GC (CNI 1.1). Starting crisp beside it takes nothing from these
// pods; only when a pod of ours has been in the network, it is ours to clean up.
func TestFirstStartSparesTheOtherRuntimesPods(t *testing.T) {
	o := options(t, "")
	bin := t.TempDir()
	log := filepath.Join(bin, "log")
	script(t, bin, "shared", `
case $CNI_COMMAND in VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}' ;;
STATUS) ;;
*) echo $CNI_COMMAND >> `+log+` ;;
esac
[ $CNI_COMMAND = ADD ] && echo '{"cniVersion":"1.1.0","ips":[{"address":"192.0.2.7/24"}]}'
exit 0`)
	o.BinDirs = append(o.BinDirs, bin)
	writeConf(t, o.ConfDir, "10-shared.conflist", `{"cniVersion":"1.1.0","name":"shared","plugins":[{"type":"shared"}]}`)
	called := func() string {
		data, _ := os.ReadFile(log)
		return strings.Join(strings.Fields(string(data)), " ")
	}
	n := open(t, o)
	if err := n.GC(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if got := called(); got != "" {
		t.Errorf("before any pod of ours the plugin was called for %s", got)
	}
	p := pod(t, "p")
	attach(t, n, p)
	// Attached by a release that has noted nothing.
	if err := os.Remove(filepath.Join(o.CacheDir, usedDir, "shared")); err != nil {
		t.Fatal(err)
	}
	if err := n.GC(t.Context(), []string{"p"}); err != nil {
		t.Fatal(err)
	}
	if err := n.markUsed("shared"); err != nil {
		t.Fatal(err)
	}
	detach(t, n, p)
	n = open(t, o)
	if err := n.GC(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if got, want := called(), "ADD GC DEL GC"; got != want {
		t.Errorf("the plugin was called for %q, want %q", got, want)
	}
}
