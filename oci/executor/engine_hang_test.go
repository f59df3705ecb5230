package executor_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// script writes an engine as a shell script, in which $CALLS is a file to log its calls in.
// The function returns the lines of that file.
func (n *node) script(text string) (with option, calls func() []string) {
	n.t.Helper()
	path, file := filepath.Join(n.dir, "engine"), filepath.Join(n.dir, "calls")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nCALLS="+file+"\n"+text), 0o755); err != nil {
		n.t.Fatal(err)
	}
	return func(req *wire.RunRequest, _ *specs.Spec) { req.Engine = path }, func() []string {
		data, _ := os.ReadFile(file)
		return strings.Fields(string(data))
	}
}

// An engine that hangs and is killed is called once: if its error were fault.Unavailable,
// crispd would take the connection for lost and start the container again.
func TestEngineThatHangs(t *testing.T) {
	n := start(t)
	with, calls := n.script("case \" $* \" in *' create '*) echo create >> $CALLS; exec sleep 1000;; esac\n")
	b := n.request([]string{"exit", "3"}, with)
	result := n.begin(t.Context(), b)
	eventually(t, func() bool { return len(calls()) > 0 }, "the engine is not called")
	b.signal(unix.SIGKILL, true)
	if err := <-result; err == nil || errors.Is(err, fault.Unavailable) {
		t.Errorf("the start ended with %v", err)
	}
	if got := calls(); len(got) != 1 {
		t.Errorf("the engine was called to %q", got)
	}
	again := n.run([]string{"exit", "3"}, func(req *wire.RunRequest, _ *specs.Spec) { req.ID = b.id })
	if e := n.waitExit(b.id); e.Code != 3 {
		t.Errorf("the retry ended with %+v", e)
	}
	again.drop()
}

// An engine is asked for its features until it has answered: one failure, for example for
// lack of memory, must not count for the rest of the executor's life.
func TestEngineAskedAgain(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/runc"); err != nil {
		t.Skip("needs /usr/sbin/runc: apt-get install runc")
	}
	n := start(t)
	with, calls := n.script("case \"$*\" in 'exec --help')\n" +
		"echo help >> $CALLS; [ $(wc -l < $CALLS) -gt 1 ] || exit 1;;\nesac\nexec /usr/sbin/runc \"$@\"\n")
	b := n.run([]string{"sleep", "for-ever"}, with, withHostPID) // on cgroup v2 only its execs have cgroups
	for i, want := range []int{1, 2, 2} {
		if code := b.exec(wire.ExecRequest{Process: process("exit", "4")}).wait(); code != 4 {
			t.Errorf("exec %d ended with %d", i, code)
		}
		if got := calls(); len(got) != want {
			t.Errorf("after exec %d the engine was asked %d times, want %d", i, len(got), want)
		}
	}
}
