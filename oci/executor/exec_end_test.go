package executor_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// An exec whose container ends while it is being started fails with that reason, whatever
// libcontainer reports of the killed bootstrap process: a kubelet must take it for the end of the
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
			for all := 0; all == 0 && len(over) == 0; { // at once: it takes some milliseconds
				all, _ = n.countBootstraps()
			}
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

// An exec that starts just as its container ends does not outlive it, even without a PID namespace
// that would end it. It may enter the container's cgroup after all processes in there have been
// killed.
func TestExecDoesNotOutliveItsContainer(t *testing.T) {
	n := start(t)
	var late int
	for try := range 36 {
		b := n.run([]string{"sleep", "for-ever"}, withHostPID)
		began := make(chan struct{})
		var reply wire.ExecReply
		over := make(chan error, 1)
		go func() {
			close(began)
			files, err := n.client.Call(t.Context(), wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process("sleep", "for-ever"), Fast: fastInit}, &reply)
			wire.CloseAll(files)
			over <- err
		}()
		<-began
		time.Sleep(time.Duration(try%12) * time.Millisecond / 4) // at different moments of its start
		unix.Kill(b.reply.Pid, unix.SIGKILL)
		b.wait()
		if err := <-over; err == nil {
			late++
			var code wire.ExecWaitReply
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			_, err := n.client.Call(ctx, wire.MethodExecWait, wire.ExecRef{ExecID: reply.ExecID}, &code)
			if cancel(); err != nil || code.Code != 128+int32(unix.SIGKILL) {
				t.Errorf("the exec that began as its container ended has the code %d, %v", code.Code, err)
				unix.Kill(reply.Pid, unix.SIGKILL)
			}
		} else if !errors.Is(err, fault.WrongState) {
			t.Errorf("exec beside the end of its container: %v", err)
		}
		b.delete()
	}
	t.Logf("%d of 36 execs had begun before their container ended", late)
}
