package network

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Another runtime of the node has pods in the network of the configuration directory, whose plugins
// support GC (CNI 1.1). A start of crispd does not affect these pods; only after one of crisp's
// pods has used the network does crispd call GC for it.
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
	// The state after an attachment by a release that did not record that.
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

// A lock that its holder removes just before GC opens it may be replaced by a new one of the same
// name with another holder: GC must not remove that one, or two calls would work on one pod at
// once.
func TestLocksThatFollowAreNotDropped(t *testing.T) {
	n := open(t, options(t, ""))
	old, err := n.openLock("p")
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := os.Remove(old.Name()); err != nil {
		t.Fatal(err)
	}
	_, release, err := n.lock(t.Context(), "p")
	if err != nil {
		t.Fatal(err)
	}
	if err := dropLock(old); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(old.Name()); err != nil {
		t.Errorf("the lock that is held was removed: %v", err)
	}
	if err := n.dropLocks(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(old.Name()); err != nil {
		t.Errorf("a lock that is held was removed: %v", err)
	}
	release()
	left, err := n.openLock("p")
	if err != nil {
		t.Fatal(err)
	}
	left.Close()
	if err := n.dropLocks(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(left.Name()); err == nil {
		t.Error("a lock that nobody holds is left")
	}
}
