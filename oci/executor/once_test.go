package executor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/oci/wire"
)

// A program runs once, whatever its name: the executor took one named as an init is for an init that had
// not executed its program yet, killed it, and started it again, as a container and as an exec.
func TestProgramRunsOnce(t *testing.T) {
	n := startLogged(t)
	for _, name := range []string{"crisp:[init]", "runc:[2:INIT]", "init"} {
		for what, script := range map[string]string{
			"ends at once":        "append /tmp/ran x exit 3",
			"ends at once by 255": "append /tmp/ran x exit 255",
			"runs":                "append /tmp/ran x await /tmp/end exit 3",
			"renames itself":      "append /tmp/ran x write /proc/self/comm " + name + " await /tmp/end exit 3",
		} {
			for _, fast := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s %s, fast %t", name, what, fast), func(t *testing.T) {
					args := append([]string{"/" + name}, strings.Fields(script)...)
					code := int32(3)
					if strings.Contains(script, "255") {
						code = 255
					}
					ran := func(b *box) int {
						data, _ := os.ReadFile(filepath.Join(b.root, "tmp", "ran"))
						return strings.Count(string(data), "x")
					}
					named := func(_ *wire.RunRequest, s *specs.Spec) {
						s.Mounts = append(s.Mounts, specs.Mount{Destination: "/" + name, Type: "bind", Source: programs.testbin, Options: []string{"bind", "ro"}})
					}
					b := n.run(nil, likeCRI, n.by(fast), named, func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Args = args })
					b.startedBy(fast)
					b.touch("tmp/end")
					if e := b.wait(); e.Code != code || ran(b) != 1 {
						t.Errorf("the container ran %d times, and ended with %d", ran(b), e.Code)
					}

					up := n.run([]string{"await", "/tmp/up"}, likeCRI, n.by(fast), named)
					process, err := json.Marshal(&specs.Process{Args: args, Cwd: "/", Env: []string{"PATH=/"}, Capabilities: &specs.LinuxCapabilities{}})
					must(err)
					e := &execed{box: up}
					files := n.call(wire.MethodExec, wire.ExecRequest{ID: up.id, Process: process, Fast: fast}, &e.ExecReply)
					defer wire.CloseAll(files)
					up.touch("tmp/end")
					if got := e.wait(); got != code || ran(up) != 1 {
						t.Errorf("the exec ran %d times, and ended with %d", ran(up), got)
					}
					up.touch("tmp/up")
					up.wait()
					if failure := failureOf(t, b.id) + failureOf(t, up.id); failure != "" {
						t.Errorf("libcontainer was tried after %s", failure)
					}
				})
			}
		}
	}
}
