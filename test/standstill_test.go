package test

import (
	"bytes"
	"context"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// An executor that hangs, after a stray SIGSTOP or in an endless wait, makes the node not ready,
// which schedulers see, and is replaced. The containers keep running, and no line of their logs is
// lost.
func TestExecutorThatStandsStillIsReplaced(t *testing.T) {
	n, _ := startNode(t)
	n.expects("executor is in trouble")
	n.expects("executor is killed, to be replaced")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	u := &unified{node: n, t: t}
	pod, err := n.sandboxConfig("p", []string{"host-network"})
	if err != nil {
		t.Fatal(err)
	}
	u.run(pod)
	_, pid := u.begin("p", "writer", nil, "count", "-1", "20ms")
	log := filepath.Join(n.dir, "logs", "p", "writer.log")
	executor, err := n.executorPid()
	if err != nil {
		t.Fatal(err)
	}
	ready := func() *cri.RuntimeCondition {
		t.Helper()
		resp, err := n.runtime().Status(ctx, &cri.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range resp.Status.Conditions {
			if c.Type == cri.RuntimeReady {
				return c
			}
		}
		t.Fatal("there is no condition RuntimeReady")
		return nil
	}
	until := func(what string, yes func() bool) {
		t.Helper()
		for ; !yes(); time.Sleep(100 * time.Millisecond) {
			if ctx.Err() != nil {
				t.Fatal(what)
			}
		}
	}
	if c := ready(); !c.Status {
		t.Fatalf("not ready from the beginning: %s, %s", c.Reason, c.Message)
	}

	if err := syscall.Kill(executor, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(executor, syscall.SIGCONT) // in case it is not killed
	var condition *cri.RuntimeCondition
	until("the node stays ready with an executor that stands still", func() bool { condition = ready(); return !condition.Status })
	if condition.Reason != "ExecutorNotReady" || condition.Message == "" {
		t.Errorf("the node is not ready with reason %q: %q", condition.Reason, condition.Message)
	}
	until("the executor is not replaced", func() bool {
		now, err := n.executorPid()
		return err == nil && now != executor
	})
	until("the node does not get ready again", func() bool { return ready().Status })

	if now := pidOf(t, "count"); now != pid {
		t.Errorf("the container's process is %d, was %d", now, pid)
	}
	if r, err := n.runtime().ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: n.ids["writer"], Cmd: []string{"/testbin", "print", "here"}}); err != nil || string(r.Stdout) != "here\n" {
		t.Errorf("exec afterwards: %v, %q", err, r.GetStdout())
	}
	was := len(read(t, log))
	until("the log stands still", func() bool { return len(read(t, log)) > was })
	want := 0
	for line := range bytes.Lines(read(t, log)) {
		fields := bytes.Fields(line)
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // the last line is being written
		}
		if got := string(fields[len(fields)-1]); got != strconv.Itoa(want) {
			t.Fatalf("line %d of the log is %s", want, got)
		}
		want++
	}
}
