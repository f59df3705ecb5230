package network

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
)

// chain is the text of a plugin that holds a file for each pod from ADD to DEL. It has the fault
// that the file <plugin>.<command> names, but only with the configuration that has "bad".
const chain = `
self=${0##*/}
held=${0%/*}/held/$self-$CNI_CONTAINERID
case $(cat) in *'"bad"'*) fault=$(cat $0.$CNI_COMMAND 2>/dev/null);; esac
says() { echo '{"cniVersion":"1.0.0","code":'$1',"msg":"'$fault'"}'; exit 1; }
case $fault in
version) says 1;;
invalid) says 7;;
later) says 11;;
exit) echo broken >&2; exit 2;;
hang) mkdir $0.hangs; sleep 1000;;
esac
case $CNI_COMMAND in
ADD) touch $held; result='{"cniVersion":"1.0.0","ips":[{"address":"192.0.2.7/24"}]}';;
DEL) rm -f $held;;
esac
case $fault in
garbage) result='{"cniVersion":';;
killed) kill -KILL $$;;
esac
echo "$result"`

// Whatever a plugin does to a pod, at ADD, at DEL or at both, and wherever it stands in the list,
// the pod can be detached once the plugin or the configuration is corrected, and the default network
// can be destroyed before that. A pod that no plugin has kept does not wait for a correction.
func TestPodOfAFaultyPluginCanBeDetached(t *testing.T) {
	for _, what := range []string{"version", "missing", "invalid", "later", "exit", "killed", "garbage", "hang"} {
		for _, at := range [][]string{{"ADD"}, {"DEL"}, {"ADD", "DEL"}} {
			for _, plugin := range []string{"first", "second"} {
				for _, mended := range []string{"plugin", "configuration"} {
					if what == "hang" && at[len(at)-1] == "DEL" && (len(at) > 1 || mended == "configuration") {
						continue // ended only by undo.Context or the caller's
					}
					t.Run(what+"/"+filepath.Join(at...)+"/"+plugin+"/"+mended, func(t *testing.T) {
						testFaultyPlugin(t, what, at, plugin, mended)
					})
				}
			}
		}
	}
}

func testFaultyPlugin(t *testing.T, what string, at []string, plugin, mended string) {
	o := options(t, "")
	bin := t.TempDir()
	o.BinDirs = []string{bin}
	if err := os.Mkdir(filepath.Join(bin, "held"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"first", "second"} {
		script(t, bin, name, chain)
	}
	n := open(t, o)
	other, p := pod(t, "other"), pod(t, "p")
	attach(t, n, other) // to the default network
	writeConf(t, o.ConfDir, "10-n.conflist", `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"first","bad":1},{"type":"second","bad":1}]}`)
	n.load()

	// call runs f with the plugin's fault if the command is to have one.
	call := func(command string, f func(context.Context) error) error {
		path := filepath.Join(bin, plugin)
		if !slices.Contains(at, command) {
			return f(t.Context())
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		switch what {
		case "missing":
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			defer script(t, bin, plugin, chain)
		case "hang":
			go func() {
				for ctx.Err() == nil && os.Remove(path+".hangs") != nil {
					time.Sleep(time.Millisecond)
				}
				cancel()
			}()
		}
		for _, c := range at { // DEL has it in the undo of ADD as well
			if err := os.WriteFile(path+"."+c, []byte(what), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return f(ctx)
	}
	err := call("ADD", func(ctx context.Context) error { _, err := n.Attach(ctx, p); return err })
	if (err != nil) != slices.Contains(at, "ADD") {
		t.Fatalf("attach: %v", err)
	}
	_, kept := n.loadAttachment(p.ID)
	if what == "version" && err != nil && kept == nil {
		t.Error("a pod is kept for a plugin that has not begun")
	}
	err = call("DEL", func(ctx context.Context) error { return n.Detach(ctx, p) })
	if errors.Is(err, fault.NotFound) || errors.Is(err, fault.Invalid) {
		t.Errorf("detach: %v: the kubelet would not try again", err)
	}
	if err := n.Destroy(t.Context()); err != nil { // wipe
		t.Errorf("destroy: %v", err)
	}
	n.GC(t.Context(), []string{p.ID})

	switch mended {
	case "plugin":
		for _, c := range at {
			if err := os.Remove(filepath.Join(bin, plugin+"."+c)); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}
	case "configuration":
		writeConf(t, o.ConfDir, "10-n.conflist", `{"cniVersion":"0.4.0","name":"n","plugins":[{"type":"first"},{"type":"second"}]}`)
		n.load()
	}
	err = n.Detach(t.Context(), p)
	// A plugin that has had the pod, and fails for a reason of its own, is asked until it succeeds.
	if own := mended == "configuration" && at[0] == "DEL" && slices.Contains([]string{"later", "exit", "killed"}, what); own && err == nil {
		t.Error("a plugin was passed over")
	} else if !own && err != nil {
		t.Errorf("detach: %v", err)
	}
	os.Remove(filepath.Join(bin, plugin+".DEL"))
	detach(t, n, p)
	if left, err := os.ReadDir(filepath.Join(bin, "held")); err != nil || len(left) > 0 {
		t.Errorf("the plugins still hold %v (%v)", left, err)
	}
}
