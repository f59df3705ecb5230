package executor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/oci/wire"
)

// withScore gives the container an oom_score_adj.
func withScore(score int) option {
	return func(_ *wire.RunRequest, s *specs.Spec) { s.Process.OOMScoreAdj = &score }
}

const ownScore = "cat /proc/self/oom_score_adj"

// An OCI runtime runs with the oom_score_adj of its container in every call, and with that
// of the exec if it has one. The scores that runtimes set themselves differ: crun's execs,
// and a score of 0, would keep the executor's, with which they are never OOM-killed.
func TestEngineOOMScore(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/runc"); err != nil {
		t.Skip("needs /usr/sbin/runc: apt-get install runc")
	}
	n := start(t)
	with, calls := n.script("case \"$*\" in 'exec --help');; *) " + ownScore + " >> $CALLS;; esac\nexec /usr/sbin/runc \"$@\"\n")
	b := n.run([]string{"cat", "/proc/self/oom_score_adj", "sleep", "for-ever"}, with, withScore(300))
	b.says("300")
	for _, tt := range []struct {
		process string
		want    string
	}{
		{"", "300"}, {`,"oomScoreAdj":300`, "300"}, {`,"oomScoreAdj":450`, "450"},
	} {
		before := len(calls())
		e := b.exec(wire.ExecRequest{Process: []byte(`{"args":["/testbin","cat","/proc/self/oom_score_adj"],"cwd":"/"` + tt.process + `}`)})
		got := line(t, e.files["stdout"])
		if code := e.wait(); code != 0 || got != "300\n" { // runc sets the container's score only
			t.Errorf("exec %q ended with %d, and its score was %q", tt.process, code, got)
		}
		if got := calls()[before:]; strings.Join(got, " ") != tt.want {
			t.Errorf("for exec %q the runtime had the scores %q, want %s", tt.process, got, tt.want)
		}
	}
	b.signal(9, true)
	b.wait()
	before := calls()
	b.delete()
	after := calls()
	if len(before) < 5 || len(after) == len(before) {
		t.Errorf("the runtime was called %d times, and then %d", len(before), len(after))
	}
	for i, score := range after {
		if score != "300" && i != 4 { // the last exec
			t.Errorf("scores of the runtime's calls are %q", after)
		}
	}
}

// crun sets the score of a container's first process, in some versions unless it is 0, and
// never that of an exec: both get the container's score all the same.
func TestCrunOOMScore(t *testing.T) {
	const crun = "/usr/bin/crun"
	if _, err := os.Stat(crun); err != nil || !cgroups.IsCgroup2UnifiedMode() {
		t.Skip("needs /usr/bin/crun and cgroup v2 alone: crun refuses a hybrid host")
	}
	n := start(t)
	for _, score := range []int{0, 300} {
		b := n.run([]string{"print", "up", "sleep", "for-ever"}, withScore(score), func(req *wire.RunRequest, _ *specs.Spec) { req.Engine = crun })
		b.says("up")
		e := b.exec(wire.ExecRequest{Process: process("print", "up", "sleep", "for-ever")})
		line(t, e.files["stdout"])
		for what, pid := range map[string]int{"the first process": b.reply.Pid, "an exec": e.Pid} {
			if got := readScore(t, pid); got != score {
				t.Errorf("oom_score_adj of %s is %d, want %d", what, got, score)
			}
		}
	}
}

// A hook that runs outside of the container, and all that it leaves running, has the
// oom_score_adj of the container.
func TestHookOOMScore(t *testing.T) {
	n := start(t)
	file := filepath.Join(n.dir, "scores")
	hook := []specs.Hook{{Path: "/bin/sh", Args: []string{"hook", "-c", "echo $0 >> " + file + "; " + ownScore + " >> " + file}, Env: []string{"PATH=" + os.Getenv("PATH")}}}
	b := n.run([]string{"exit", "0"}, withScore(300), func(_ *wire.RunRequest, s *specs.Spec) {
		//lint:ignore SA1019 OCI still has prestart hooks, and NVIDIA's runtime hook is one
		s.Hooks = &specs.Hooks{Prestart: hook, CreateRuntime: hook, CreateContainer: hook, Poststart: hook, Poststop: hook}
	})
	b.wait()
	b.delete()
	got, err := os.ReadFile(file)
	if want := strings.Repeat("hook\n300\n", 5); err != nil || string(got) != want {
		t.Errorf("hooks say %q, want %q: %v", got, want, err)
	}
	missing := []specs.Hook{{Path: "/nosuch/hook", Args: []string{"hook"}}}
	bad := n.request([]string{"exit", "0"}, func(_ *wire.RunRequest, s *specs.Spec) { s.Hooks = &specs.Hooks{CreateRuntime: missing} })
	if err := n.fails(nil, wire.MethodRun, bad.req); err == nil || !strings.Contains(err.Error(), "/nosuch/hook: No such file or directory") {
		t.Errorf("start with a hook that is not there: %v", err)
	}
}

// An exec without a score of its own gets the container's, as the last update has left it.
func TestExecScoreAfterUpdate(t *testing.T) {
	n := start(t)
	b := n.run([]string{"cat", "/proc/self/oom_score_adj", "sleep", "for-ever"}, withScore(300))
	b.says("300")
	score := func() string {
		e := b.exec(wire.ExecRequest{Process: process("cat", "/proc/self/oom_score_adj")})
		defer e.wait()
		return line(t, e.files["stdout"])
	}
	if got := score(); got != "300\n" {
		t.Errorf("score of an exec is %q, want 300", got)
	}
	adj := 450
	n.call(wire.MethodUpdate, wire.UpdateRequest{ID: b.id, OOMScoreAdj: &adj}, nil)
	if got := score(); got != "450\n" {
		t.Errorf("score of an exec is %q, want 450", got)
	}
	adj = 600
	n.fails(nil, wire.MethodUpdate, wire.UpdateRequest{ID: b.id, OOMScoreAdj: &adj, Resources: []byte(`{"cpu":{"quota":1,"period":100000}}`)})
	if got := score(); got != "450\n" {
		t.Errorf("score of an exec after a change that was refused is %q, want 450", got)
	}
	if got := b.output(crilog.Stdout); got != "300\n" {
		t.Errorf("the container says %q", got)
	}
}
