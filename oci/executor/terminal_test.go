package executor_test

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/oci/wire"
)

// The terminal of a container whose first attempt had one too is that of the second attempt.
func TestTerminalOfASecondAttempt(t *testing.T) {
	n := startLogged(t)
	b := n.request([]string{"print", "up", "echo-stdin"}, withTTY, func(r *wire.RunRequest, s *specs.Spec) {
		r.Fast, s.Linux.MaskedPaths = true, []string{"/proc/self/fd/0"}
	})
	b.fds = n.call(wire.MethodRun, b.req, &b.reply)
	t.Cleanup(b.drop)
	if failureOf(t, b.id) == "" {
		t.Error("there was no first attempt")
	}
	b.startedBy(false)
	b.says("up")
}

// The output of an init that closes its terminal and opens /dev/console for each message, as
// systemd does, still reaches the log and attached clients, also after an upgrade.
func TestTerminalOpenedAgain(t *testing.T) {
	n := start(t)
	b := n.run([]string{"print", "before", "close", "sleep", "300ms", "write", "/dev/console", "later\n",
		"await", "/tmp/go", "write", "/dev/console", "after the upgrade\n"}, withTTY)
	a := b.attach(false)
	b.says("later\n")
	until(t, a["stdout"], "later")
	n.upgrade()
	b.touch("tmp/go")
	b.says("after the upgrade\n")
	if e := b.wait(); e.Code != 0 {
		t.Errorf("exit is %+v", e)
	}
}
