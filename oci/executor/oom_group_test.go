package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/oci/wire"
)

// An exec into a container that has no memory left is killed, with all of the container
// where memory.oom.group asks for that, as kubelets do, and nothing else: if it were the
// executor, each probe of the node would fail for a moment. The container's first process
// is exempt here, so that the next exec finds the container as full.
func TestNoMemoryForExecs(t *testing.T) {
	if !cgroups.IsCgroup2UnifiedMode() {
		t.Skip("needs cgroup v2 alone, which has memory.oom.group")
	}
	n := start(t)
	b := n.run([]string{"eat", "12", "print", "fed", "sleep", "for-ever"}, func(_ *wire.RunRequest, s *specs.Spec) {
		s.Linux.Resources = &specs.LinuxResources{Unified: map[string]string{"memory.oom.group": "1"}}
	})
	b.says("fed")
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", b.reply.Pid), []byte("-1000"), 0); err != nil {
		t.Fatal(err)
	}
	b.limit("memory.swap.max", "0")
	b.limit("memory.max", strconv.Itoa(b.number("memory.current")+3<<20)) // enough for the bootstrap processes of a few execs

	const together = 12
	execs := int64(60)
	if text := os.Getenv("CRISP_OOM_EXECS"); text != "" {
		var err error
		if execs, err = strconv.ParseInt(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	go func() { // takes the events: there are more than the channel holds
		for {
			select {
			case <-n.ooms:
			case <-t.Context().Done():
				return
			}
		}
	}()
	var begun, failed atomic.Int64
	var all sync.WaitGroup
	for range together {
		all.Go(func() {
			for begun.Add(1) <= execs && alive(n.cmd.Process.Pid) {
				if !n.tries(b, process("exit", "0")) {
					failed.Add(1)
				}
			}
		})
	}
	all.Wait()
	if !alive(n.cmd.Process.Pid) {
		t.Fatalf("the executor has ended, after %d execs", begun.Load())
	}
	kills := b.number("memory.events", "oom_group_kill")
	t.Logf("%d of %d execs failed, and the kernel killed %d times", failed.Load(), execs, kills)
	if kills < int(execs)/30 { // one kill may end several execs
		t.Error("the container had memory enough")
	}
	b.limit("memory.max", "max")
	if code := b.exec(wire.ExecRequest{Process: process("exit", "3")}).wait(); code != 3 {
		t.Errorf("exec with memory ended with %d", code)
	}
	var hello wire.HelloReply
	if n.call(wire.MethodHello, nil, &hello); hello.Pid != n.cmd.Process.Pid {
		t.Errorf("executor is process %d, and was %d", hello.Pid, n.cmd.Process.Pid)
	}
	if !alive(b.reply.Pid) {
		t.Error("the container has ended")
	}
}

// tries makes an exec, and reports whether it exited with 0.
func (n *node) tries(b *box, process []byte) bool {
	var reply wire.ExecReply
	files, err := n.client.Call(n.t.Context(), wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process, Fast: fastInit}, &reply)
	wire.CloseAll(files)
	if err != nil {
		return false
	}
	var ended wire.ExecWaitReply
	_, err = n.client.Call(n.t.Context(), wire.MethodExecWait, wire.ExecRef{ExecID: reply.ExecID}, &ended)
	return err == nil && ended.Code == 0
}

// limit writes a file of the container's v2 cgroup.
func (b *box) limit(file, value string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.reply.Cgroups[""], file), []byte(value), 0); err != nil {
		b.t.Fatal(err)
	}
}

// number reads a file of the container's v2 cgroup, or the line of it that begins with key.
func (b *box) number(file string, key ...string) int {
	b.t.Helper()
	data, err := os.ReadFile(filepath.Join(b.reply.Cgroups[""], file))
	if err != nil {
		b.t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if n := len(key); strings.HasPrefix(line, strings.Join(key, "")) {
			if i, err := strconv.Atoi(strings.Fields(line)[n]); err == nil {
				return i
			}
		}
	}
	b.t.Fatalf("%s has no %q: %q", file, key, data)
	return 0
}
