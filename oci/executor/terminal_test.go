package executor_test

import "testing"

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
