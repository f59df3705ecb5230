package executor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/testenv"
)

// withGVisor has gVisor's shim run a container: the pod's own if first is nil, else one in that pod.
// root is runsc's state directory.
func (n *node) withGVisor(root string, first *box) option {
	n.t.Helper()
	config := filepath.Join(n.dir, "runsc.toml")
	text := fmt.Sprintf("binary_name = %q\nroot = %q\n[runsc_config]\nplatform = \"systrap\"\nnetwork = \"none\"\n",
		filepath.Join(testenv.Shims(), "runsc"), root)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
	return func(req *wire.RunRequest, s *specs.Spec) {
		req.Shim = &wire.Shim{
			Path:        testenv.GVisorShim(),
			OptionsType: "runtimeoptions.v1.Options",
			Options:     protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), config),
		}
		s.Annotations = map[string]string{"io.kubernetes.cri.container-type": "sandbox"}
		if first != nil {
			req.Shim.Sandbox = first.id
			s.Annotations = map[string]string{"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-id": first.id}
		}
	}
}

// A pod in gVisor: its containers are on another kernel, and are asked for everything by way of the
// shim. Neither a killed executor nor an upgrade loses anything; a killed shim ends them with a reason.
func TestShimOfGVisor(t *testing.T) {
	testenv.Need(t, "gvisor")
	testenv.Hierarchies(t, false)
	testenv.RemoveShimDirs(t)
	root := t.TempDir()
	t.Cleanup(func() { // runsc keeps an empty network namespace for all its containers
		pins, _ := filepath.Glob(filepath.Join(root, "*", "null-netns"))
		for _, pin := range pins {
			if err := unix.Unmount(pin, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
	})
	n := start(t)
	first := n.run([]string{"sleep", "for-ever"}, n.withGVisor(root, nil), func(req *wire.RunRequest, _ *specs.Spec) { req.LogPath = "" })
	b := n.run([]string{"print", "out", "eprint", "err", "exit", "3"}, n.withGVisor(root, first))
	if e := b.wait(); e.Code != 3 || b.output(crilog.Stdout) != "out\n" || b.output(crilog.Stderr) != "err\n" {
		t.Errorf("it ended with %+v and printed %q, %q", e, b.output(crilog.Stdout), b.output(crilog.Stderr))
	}
	b.delete()
	busy := n.run([]string{"count", "-1", "1ms"}, n.withGVisor(root, first))
	tty := n.run([]string{"print", "up", "echo-stdin"}, n.withGVisor(root, first), withTTY)
	busy.says("3\n")
	tty.says("up")
	e := busy.exec(wire.ExecRequest{Process: process("echo-stdin", "exit", "4"), Stdin: true})
	e.files["stdin"].WriteString("typed\n")
	e.files["stdin"].Close()
	if got := all(t, e.files["stdout"]); got != "typed\n" {
		t.Errorf("the exec printed %q", got)
	}
	if code := e.wait(); code != 4 {
		t.Errorf("the exec ended with %d", code)
	}
	if len(busy.reply.Cgroups) == 0 {
		var stats wire.StatsReply
		if n.call(wire.MethodStats, wire.Ref{ID: busy.id}, &stats); !strings.Contains(stats.Type, "Metrics") || len(stats.Data) == 0 {
			t.Errorf("its counters are %+v", stats)
		}
	}
	n.upgrade()
	n.crash(func() {})
	for _, b := range []*box{first, busy, tty} {
		b.adopt()
	}
	before := busy.numbered()
	eventually(t, func() bool { return busy.numbered() > before+20 }, "the log does not go on")
	a := tty.attach(true)
	a["stdin"].WriteString("typed\n")
	tty.says("typed\ntyped\n")
	tty.signal(unix.SIGKILL, true)
	if e := tty.wait(); e.Code != 137 || e.Message != "" {
		t.Errorf("it ended with %+v", e)
	}
	less := int64(64 << 20)
	resources, _ := json.Marshal(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &less}})
	n.call(wire.MethodUpdate, wire.UpdateRequest{ID: busy.id, Resources: resources}, nil)
	tty.delete()
	n.lastWords(first, n.withGVisor(root, first))
	busy.adopt()
	pid, _ := first.shim()
	for _, keeper := range first.keepers() { // neither the sandbox nor its gofer
		cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", keeper))
		if keeper != pid && !strings.Contains(string(cmd), "\x00wait\x00") {
			t.Errorf("%q has the shim's sockets", cmd)
		}
	}
	unix.Kill(pid, unix.SIGKILL)
	for _, b := range []*box{first, busy} {
		if e := b.wait(); e.Code != 137 || e.Reason != wire.ReasonShimGone || !strings.Contains(e.Message, "containerd-shim-runsc-v1") {
			t.Errorf("it ended with %+v", e)
		}
	}
}
