package executor

import (
	"errors"
	"os/exec"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A call that fails because the container's process has just ended is answered with that,
// and not with libcontainer's error, before the executor has noticed the end as well as
// after.
func TestEndsUnder(t *testing.T) {
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	proc, err := proc.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	c := &container{settings: settings{Settings: wire.Settings{ID: "c"}}, phase: running, proc: proc}
	x := &Executor{table: newTable()}
	x.table.containers["c"] = c
	if err := x.table.endsUnder(c); err != nil {
		t.Errorf("a running container is reported to have ended: %v", err)
	}
	stdin.Close()
	if err := proc.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := x.table.endsUnder(c); !errors.Is(err, fault.WrongState) {
		t.Errorf("after the end, before the executor has noticed it: %v", err)
	}
	c.phase = ended
	if err := x.table.endsUnder(c); !errors.Is(err, fault.WrongState) {
		t.Errorf("after the executor has noticed the end: %v", err)
	}
	delete(x.table.containers, "c")
	if err := x.table.endsUnder(c); !errors.Is(err, fault.NotFound) {
		t.Errorf("after the container was removed: %v", err)
	}
	proc.FD.Close()
	cmd.Wait()
}
