package network

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A pod whose namespace is gone, as after a crash, keeps no address and no port.
func TestDetachWithoutNamespace(t *testing.T) {
	n := open(t, options(t, ""))
	path, unpin := namespace(t)
	p := Pod{ID: "gone", NetNS: path, Ports: []Port{{Protocol: "tcp", ContainerPort: 80, HostPort: 12000}}, EgressBPS: 1e6}
	attach(t, n, p)
	unpin()
	detach(t, n, p)
	destroy(t, n)
}

// After a reboot the state directory is empty, the kernel knows nothing of the
// pod, and another daemon with another configuration cleans up.
func TestDetachAfterReboot(t *testing.T) {
	o := options(t, "")
	n := open(t, o)
	path, unpin := namespace(t)
	p := Pod{ID: "old", NetNS: path, Ports: []Port{{Protocol: "tcp", ContainerPort: 80, HostPort: 12000}}}
	attach(t, n, p)
	unpin()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	attachments, err := n.attached()
	if err != nil || len(attachments) != 1 {
		t.Fatalf("attached: %v (err %v)", attachments, err)
	}
	// The attachment makes Destroy refuse, so wipe as a reboot does.
	nft(t, "flush ruleset")
	removeBridge(t, "crisp0")

	writeConf(t, o.ConfDir, "10-other.conflist", `{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"absent"}]}`)
	n2 := open(t, o)
	detach(t, n2, Pod{ID: "old"})
	if got := addressesInUse(o); len(got) != 0 {
		t.Errorf("addresses %v are not released", got)
	}
}

// The result of ADD must be removed; libcni does not report that it is still there, and nothing
// else would remove it.
func TestResultThatCannotBeRemoved(t *testing.T) {
	o := options(t, "")
	n := open(t, o)
	p := pod(t, "p")
	attach(t, n, p)
	result := filepath.Join(o.CacheDir, "results", "crisp-p-eth0")
	if err := unix.Mount(result, result, "", unix.MS_BIND, ""); err != nil { // rmdir(2), unlink(2): EBUSY
		t.Fatal(err)
	}
	if err := n.Detach(t.Context(), p); !errors.Is(err, unix.EBUSY) {
		t.Errorf("detached with %v", err)
	}
	if err := unix.Unmount(result, 0); err != nil {
		t.Fatal(err)
	}
	detach(t, n, p)
	if _, err := os.Stat(result); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the result is left: %v", err)
	}
	destroy(t, n)
}

// GC releases what neither the caller nor the kernel has any more, even if a power cut has lost the
// attachment itself.
func TestGC(t *testing.T) {
	o := options(t, "")
	n := open(t, o)
	keep, drop, cut := pod(t, "keep"), pod(t, "drop"), pod(t, "cut")
	for _, p := range []Pod{keep, drop, cut} {
		attach(t, n, p)
	}
	// The record is gone, the address is still allocated. Its device is removed with the namespace.
	for _, f := range []string{n.attachmentPath("cut"), filepath.Join(o.CacheDir, "results", "crisp-cut-eth0")} {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	if got := addressesInUse(o); len(got) != 6 {
		t.Errorf("addresses in use are %v, want 6", got)
	}
	if err := n.GC(t.Context(), []string{"keep"}); err != nil {
		t.Fatal(err)
	}
	if got := addressesInUse(o); len(got) != 2 {
		t.Errorf("addresses in use are %v, want 2", got)
	}
	if err := n.Check(t.Context(), keep); err != nil {
		t.Errorf("GC has damaged a kept attachment: %v", err)
	}
	detach(t, n, keep)
	destroy(t, n)
	unpinAll(t, cut)
}

// A hanging plugin is killed with its children when the caller's context ends, and DEL still runs;
// the retry succeeds.
func TestHangingPlugin(t *testing.T) {
	o := options(t, "")
	bin := t.TempDir()
	log := filepath.Join(bin, "log")
	// The child keeps our pipes open, as delegates do.
	script(t, bin, "sleepy", `
echo $CNI_COMMAND >> `+log+`
if [ $CNI_COMMAND = ADD ] && [ ! -e `+bin+`/awake ]; then sleep 1000 & echo $! > `+bin+`/child; echo >> `+log+`; wait; fi
[ $CNI_COMMAND = ADD ] && echo '{"cniVersion":"1.0.0","ips":[{"address":"192.0.2.7/24"}]}'
exit 0`)
	o.BinDirs = append(o.BinDirs, bin)
	writeConf(t, o.ConfDir, "10-sleepy.conflist", `{"cniVersion":"1.0.0","name":"sleepy","plugins":[{"type":"sleepy"}]}`)
	n := open(t, o)
	p := pod(t, "p")

	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for range 1000 {
			if data, _ := os.ReadFile(log); strings.Contains(string(data), "\n\n") {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	}()
	if _, err := n.Attach(ctx, p); !errors.Is(err, context.Canceled) {
		t.Fatalf("attach: %v", err)
	}
	if got, _ := os.ReadFile(log); string(got) != "ADD\n\nDEL\n" {
		t.Errorf("the plugin was called for %q", got)
	}
	if ids, _ := n.attached(); len(ids) > 0 {
		t.Errorf("%v are still attached", ids)
	}
	child, err := os.ReadFile(filepath.Join(bin, "child"))
	if err != nil {
		t.Fatal(err)
	}
	waitDead(t, strings.TrimSpace(string(child)))
	script(t, bin, "awake", "")
	attach(t, n, p)
	detach(t, n, p)
}

// waitDead waits until a process is gone, or a zombie that its new parent has not
// reaped yet.
func waitDead(t *testing.T, pid string) {
	t.Helper()
	for range 6000 { // a minute
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %s is alive", pid)
}

// A failed DEL is an error, stays recorded, and is repeated with the configuration
// of ADD.
func TestFailedDeleteIsRepeated(t *testing.T) {
	o := options(t, "")
	bin := t.TempDir()
	script(t, bin, "stuck", `
case $CNI_COMMAND in
ADD) echo '{"cniVersion":"1.0.0","ips":[{"address":"192.0.2.7/24"}]}';;
DEL) cat > `+bin+`/stdin; if [ ! -e `+bin+`/loose ]; then echo '{"code":11,"msg":"not now"}'; exit 1; fi;;
esac`)
	o.BinDirs = append(o.BinDirs, bin)
	conf := writeConf(t, o.ConfDir, "10-stuck.conflist", `{"cniVersion":"1.0.0","name":"stuck","plugins":[{"type":"stuck","first":true}]}`)
	n := open(t, o)
	p := pod(t, "p")
	attach(t, n, p)
	writeConf(t, o.ConfDir, "10-stuck.conflist", `{"cniVersion":"1.0.0","name":"stuck","plugins":[{"type":"absent"}]}`)
	n.load()
	if err := n.Detach(t.Context(), p); !errors.Is(err, fault.Unavailable) {
		t.Errorf("detach: %v, want Unavailable", err)
	}
	if err := os.Remove(conf); err != nil {
		t.Fatal(err)
	}
	script(t, bin, "loose", "")
	detach(t, n, p)
	var got struct {
		First      bool           `json:"first"`
		PrevResult map[string]any `json:"prevResult"`
	}
	data, err := os.ReadFile(filepath.Join(bin, "stdin"))
	if err == nil {
		err = json.Unmarshal(data, &got)
	}
	if err != nil || !got.First || got.PrevResult == nil {
		t.Errorf("DEL was given %s (err %v), want the configuration and the result of ADD", data, err)
	}
}

// A record that a power cut has emptied, or that has no usable configuration, must not keep the pod
// from being detached.
func TestDetachWithDamagedRecord(t *testing.T) {
	o := options(t, "")
	n := open(t, o)
	for _, text := range []string{"", `{"version":1,"id":"p","config":null}`, `{"version":1,"id":"p","config":{"name":"n","plugins":[]}}`} {
		p := pod(t, "p")
		attach(t, n, p)
		if err := os.WriteFile(n.attachmentPath(p.ID), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		detach(t, n, p)
	}
	destroy(t, n)
}

// Earlier releases recorded port mappings that plugins refuse to read, at DEL as at ADD.
func TestDetachWithPortsThatAreNone(t *testing.T) {
	for name, conf := range map[string]string{"default": "", "standard": "10-standard.conflist"} {
		t.Run(name, func(t *testing.T) {
			needsRoot(t)
			o := options(t, "")
			if conf != "" {
				o.BinDirs = []string{standardPlugins(t)}
				writeConf(t, o.ConfDir, conf, standardConf(o.DataDir, true))
				t.Cleanup(func() {
					nft(t, "flush ruleset") // portmap never removes its tables
					removeBridge(t, "br-test")
				})
			}
			n := open(t, o)
			p := pod(t, "p")
			p.Ports = []Port{{Protocol: "tcp", ContainerPort: 80, HostPort: 12000}}
			attach(t, n, p)
			serve(t, p.NetNS, 80)
			wantAsk(t, "", "127.0.0.1:12000", "")
			a, err := n.loadAttachment(p.ID)
			if err != nil {
				t.Fatal(err)
			}
			a.Capabilities["portMappings"] = []Port{
				{Protocol: "tcp", HostPort: 65536, ContainerPort: 80}, {Protocol: "tcp", HostPort: 80},
				{Protocol: "udp", HostPort: 80, ContainerPort: -1}, p.Ports[0],
			}
			if err := n.saveAttachment(a); err != nil {
				t.Fatal(err)
			}
			detach(t, n, p)
			if _, err := ask(t, "", "127.0.0.1:12000"); err == nil {
				t.Error("the host port answers after detach")
			}
			destroy(t, n)
		})
	}
}

// A newer release's attachment is not corrupt: an older release returns an error instead of
// guessing how to detach it.
func TestNewerAttachmentIsRefused(t *testing.T) {
	n, o := fresh(t, false)
	path := n.attachmentPath("p")
	if err := os.WriteFile(path, []byte(`{"version":2,"id":"p","plugins":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.Detach(t.Context(), Pod{ID: "p"}); !errors.Is(err, fault.WrongState) || !strings.Contains(err.Error(), "newer crispd") {
		t.Errorf("detach: %v", err)
	}
	if _, err := Open(o); !errors.Is(err, fault.WrongState) || !strings.Contains(err.Error(), path) {
		t.Errorf("open: %v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

// The ADD of a dead daemon continues; DEL waits for it, so that it does not miss what ADD is still
// making.
func TestDetachWaitsForOrphanedAdd(t *testing.T) {
	o := options(t, "")
	n := open(t, o)
	p := pod(t, "p")
	conf, err := n.usable()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.saveAttachment(n.newAttachment(conf, p)); err != nil {
		t.Fatal(err)
	}
	ctx, unlock, err := n.lock(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}
	if workOf(ctx) == nil {
		t.Error("plugins do not inherit the lock")
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := n.Detach(short, p); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("detach beside an ADD: %v", err)
	}
	unlock()
	detach(t, n, p)
}
