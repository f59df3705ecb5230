package executor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/testenv"
)

func TestRun(t *testing.T) {
	n := start(t)
	b := n.run([]string{"print", "out", "eprint", "err", "exit", "7"})
	e := b.wait()
	if e.Code != 7 || e.Reason != wire.ReasonError || e.OOMKilled || e.At.Before(b.reply.StartedAt) {
		t.Errorf("exit is %+v, started at %v", e, b.reply.StartedAt)
	}
	if out, err := b.output(crilog.Stdout), b.output(crilog.Stderr); out != "out\n" || err != "err\n" {
		t.Errorf("log has %q and %q", out, err)
	}
	data, err := os.ReadFile(b.exit)
	if err != nil {
		t.Fatal(err)
	}
	var record wire.Exit
	if err := json.Unmarshal(data, &record); err != nil || record.Code != 7 || record.ID != b.id || !record.At.Equal(e.At) {
		t.Errorf("exit.json is %s (%v), event was %+v", data, err, e)
	}
	var all []wire.Info
	n.call(wire.MethodList, nil, &all)
	if len(all) != 1 || all[0].Exit == nil || all[0].Exit.Code != 7 || all[0].Pid != b.reply.Pid {
		t.Errorf("list is %+v", all)
	}
	b.delete()
	b.delete() // removing what is gone is no error, as CRI demands
	if n.call(wire.MethodList, nil, &all); len(all) != 0 {
		t.Errorf("list after delete is %+v", all)
	}
}

func TestExitBySignal(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	n.fails(fault.WrongState, wire.MethodDelete, wire.Ref{ID: b.id})
	n.fails(fault.Exists, wire.MethodRun, b.req)
	n.fails(fault.WrongState, wire.MethodShutdown, nil)
	b.signal(9, false)
	if e := b.wait(); e.Code != 137 || e.Reason != wire.ReasonError {
		t.Errorf("exit is %+v", e)
	}
	b.signal(15, false) // has exited: no error
	n.fails(fault.WrongState, wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process()})
	n.fails(fault.WrongState, wire.MethodReopenLog, wire.Ref{ID: b.id})
	n.fails(fault.NotFound, wire.MethodSignal, wire.SignalRequest{ID: "nobody", Signal: 9})
}

// The executor is exempt from the OOM killer; its containers are not.
func TestOOMScoreIsNotInherited(t *testing.T) {
	n := start(t)
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	b := n.run([]string{"cat", "/proc/self/oom_score_adj"})
	b.wait()
	want := "0\n"
	if got := b.output(crilog.Stdout); got != want && got != string(own) {
		t.Errorf("oom_score_adj is %q, want %q, or at least what it was, %q", got, want, own)
	}
	five := 5
	b = n.run([]string{"cat", "/proc/self/oom_score_adj"}, func(_ *wire.RunRequest, s *specs.Spec) { s.Process.OOMScoreAdj = &five })
	b.wait()
	if got := b.output(crilog.Stdout); got != "5\n" {
		t.Errorf("oom_score_adj is %q, want 5", got)
	}
}

// A start that fails gives the user the reason, leaves nothing, and the next one succeeds.
func TestStartErrors(t *testing.T) {
	n := start(t)
	args := func(a ...string) option {
		return func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Args = a }
	}
	script := func(text string) option {
		return func(_ *wire.RunRequest, s *specs.Spec) {
			if err := os.WriteFile(filepath.Join(s.Root.Path, "script"), []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
			s.Process.Args = []string{"/script"}
		}
	}
	for _, tt := range []struct {
		option option
		want   string
	}{
		{args("nosuch"), `exec: "nosuch": executable file not found in $PATH`},
		{args("/nosuch"), `exec: "/nosuch": stat /nosuch: no such file or directory`},
		{args("/proc"), `exec: "/proc": is a directory`},
		{script("#!/nosuch-interpreter\n"), "no such file or directory"},
		{script("\x7fELF, but of no machine"), "exec format error"},
		{func(_ *wire.RunRequest, s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/mnt", Type: "bind", Source: "/nosuch-source", Options: []string{"bind"}})
		}, "/nosuch-source"},
	} {
		b := n.request([]string{"exit", "0"}, tt.option)
		err := n.fails(nil, wire.MethodRun, b.req)
		if err == nil {
			continue
		}
		if !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error is %q, want %q in it", err, tt.want)
		}
		if strings.Contains(err.Error(), "unable to start") || strings.Contains(err.Error(), "runc") {
			t.Errorf("error %q is too long", err)
		}
		spec := b.req.Spec
		spec.Process.Args, spec.Mounts = []string{"/testbin", "exit", "3"}, spec.Mounts[:4]
		n.call(wire.MethodRun, b.req, nil)
		if e := b.wait(); e.Code != 3 {
			t.Errorf("exit of the retry is %+v", e)
		}
		b.delete()
	}
}

// A container that joins the PID namespace of another one does not run if that has ended: the PID
// in the namespace's path is then another process's.
func TestPIDTargetEnds(t *testing.T) {
	n := start(t)
	other := n.run([]string{"sleep", "for-ever"})
	with := map[string]option{"built in": func(*wire.RunRequest, *specs.Spec) {}}
	if testenv.Exists("/usr/sbin/runc") {
		with["engine"] = withEngine
	}
	for name, option := range with {
		target := n.run([]string{"sleep", "for-ever"})
		ends := fmt.Sprintf("kill -9 %d; while kill -0 %[1]d; do sleep 0.01; done", target.reply.Pid)
		joins := func(r *wire.RunRequest, s *specs.Spec) {
			r.PIDTarget, s.Linux.Namespaces[0].Path = target.id, fmt.Sprintf("/proc/%d/ns/pid", other.reply.Pid)
		}
		b := n.request([]string{"print", "ran", "sleep", "for-ever"}, option, joins, withHook(filepath.Join(n.dir, "hook"), ends))
		n.fails(fault.WrongState, wire.MethodRun, b.req)
		if out, _ := os.ReadFile(b.log); len(out) > 0 {
			t.Errorf("%s: it has run: %s", name, out)
		}
		again := n.request([]string{"print", "ran"}, option, joins)
		n.fails(fault.WrongState, wire.MethodRun, again.req)
		target.wait()
	}
	b := n.request([]string{"exit", "3"}, func(r *wire.RunRequest, s *specs.Spec) {
		r.PIDTarget, s.Linux.Namespaces[0].Path = other.id, fmt.Sprintf("/proc/%d/ns/pid", other.reply.Pid)
	})
	n.call(wire.MethodRun, b.req, &b.reply)
	if e := b.wait(); e.Code != 3 {
		t.Errorf("exit is %+v", e)
	}
}
