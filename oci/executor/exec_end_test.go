package executor_test

import (
	"errors"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// An exec whose container ends while it is being started fails with that reason, whatever
// libcontainer reports of the killed stage: a kubelet must take it for the end of the
// container and not for a failed probe.
func TestExecBesideTheEnd(t *testing.T) {
	n := start(t)
	for name, with := range map[string]option{"pid namespace": func(*wire.RunRequest, *specs.Spec) {}, "host's": withHostPID} {
		for try, tried := 0, 0; tried < 3; try++ {
			if try == 100 {
				t.Fatalf("%s: of %d execs, %d were being started when their container ended", name, try, tried)
			}
			b := n.run([]string{"sleep", "for-ever"}, with)
			over := make(chan error, 1)
			go func() {
				files, err := n.client.Call(t.Context(), wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process("sleep", "for-ever")}, nil)
				wire.CloseAll(files)
				over <- err
			}()
			eventually(t, func() bool { all, _ := n.countBootstraps(); return all > 0 || len(over) > 0 }, "an exec neither starts nor has it started")
			unix.Kill(b.reply.Pid, unix.SIGKILL)
			if err := <-over; err != nil {
				tried++
				if !errors.Is(err, fault.WrongState) {
					t.Errorf("%s: exec beside the end of its container: %v", name, err)
				}
			}
			b.wait()
			b.delete()
		}
	}
}
