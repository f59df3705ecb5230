package executor_test

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/testenv"
)

// The stdin of an exec is a /dev/null, but not the host's: through its descriptor root in the
// container could change the owner and mode of the host's.
func TestExecNull(t *testing.T) {
	n := start(t)
	for name, options := range map[string][]option{"libcontainer": nil, "runc": {withEngine}} {
		if name == "runc" && !testenv.Exists("/usr/sbin/runc") {
			continue
		}
		b := n.run([]string{"await", "/tmp/go"}, options...)
		e := b.exec(wire.ExecRequest{Process: process("print", "up", "await", "/tmp/end")})
		line(t, e.files[wire.FDStdout])
		stdin := fmt.Sprintf("/proc/%d/fd/0", e.Pid)
		got, err := os.Stat(stdin)
		if err != nil {
			t.Fatal(err)
		}
		host, err := os.Stat(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		if os.SameFile(got, host) {
			t.Errorf("%s: stdin is the host's /dev/null", name)
		}
		if rdev := got.Sys().(*syscall.Stat_t).Rdev; got.Mode()&os.ModeCharDevice == 0 || rdev != unix.Mkdev(1, 3) || got.Mode().Perm() != 0o666 {
			t.Errorf("%s: stdin is %v, device %x", name, got.Mode(), rdev)
		}
		if to, err := os.Readlink(stdin); to != os.DevNull {
			t.Errorf("%s: stdin is shown as %q, %v", name, to, err)
		}
		b.touch("tmp/end")
		if code := e.wait(); code != 0 {
			t.Errorf("%s: code %d", name, code)
		}
		b.touch("tmp/go")
		b.waitExit(b.id)
	}
}
