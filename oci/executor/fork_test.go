package executor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/filetrace"
)

// Where nothing can be forked or executed any more (a limit of processes is reached, or memory is
// short), a start fails with the reason, however it is done and however far it comes. It leaves
// nothing behind: when the shortage is over, the same request succeeds.
func TestStartWithoutForks(t *testing.T) {
	n := start(t)
	inject := filetrace.AttachForks(t, n.cmd.Process.Pid)
	defer inject.Release()
	host := n.run([]string{"sleep", "for-ever"})
	hook := specs.Hook{Path: "/bin/true", Args: []string{"true"}}
	run := func(options ...option) func() (string, string, any) {
		return func() (string, string, any) {
			b := n.request([]string{"exit", "3"}, options...)
			return b.id, wire.MethodRun, b.req
		}
	}
	pods := 0
	for name, request := range map[string]func() (id, method string, req any){
		"the fast init": run(),
		"libcontainer":  run(func(r *wire.RunRequest, _ *specs.Spec) { r.Fast = false }),
		"a terminal":    run(withTTY),
		"hooks": run(func(_ *wire.RunRequest, s *specs.Spec) {
			s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{hook}, CreateContainer: []specs.Hook{hook}, Poststart: []specs.Hook{hook}, Poststop: []specs.Hook{hook}}
		}),
		"a shared PID namespace": run(func(_ *wire.RunRequest, s *specs.Spec) {
			s.Linux.Namespaces[0].Path = fmt.Sprintf("/proc/%d/ns/pid", host.reply.Pid)
		}),
		"a pod's init": func() (string, string, any) {
			pods++
			id := fmt.Sprintf("pod%d", pods)
			return id, wire.MethodPodInit, wire.PodInitRequest{ID: id, Path: programs.podinit, Cgroup: n.cgroup + "/" + id, Fast: fastInit}
		},
		"an exec": func() (string, string, any) {
			return "", wire.MethodExec, wire.ExecRequest{ID: host.id, Process: process("exit", "3"), Fast: fastInit}
		},
		"an exec by libcontainer": func() (string, string, any) {
			return "", wire.MethodExec, wire.ExecRequest{ID: host.id, Process: process("exit", "3")}
		},
		"an exec with a terminal": func() (string, string, any) {
			return "", wire.MethodExec, wire.ExecRequest{ID: host.id, Process: process("exit", "3"), TTY: true}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n.t = t
			errnos := []syscall.Errno{unix.EAGAIN, unix.ENOMEM}
			for from, failed := 1, true; failed; from++ { // until it has all that it needs
				if from > 30 {
					t.Fatal("it needs more and more forks")
				}
				id, method, req := request()
				inject.ArmAll(from, errnos[from%2])
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				files, err := n.client.Call(ctx, method, req, nil)
				cancel()
				what, _ := inject.Disarm()
				wire.CloseAll(files)
				failed = what.Happened
				if err != nil {
					if !failed || errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "panic") || strings.Contains(err.Error(), "undo") {
						t.Errorf("with call %d failing, %s: %v", from, what.What, err)
					}
					if id != "" {
						n.call(wire.MethodDelete, wire.Ref{ID: id}, nil)
					}
					files, err = n.client.Call(t.Context(), method, req, nil)
					wire.CloseAll(files)
					if err != nil {
						t.Fatalf("when call %d, %s, no longer fails: %v", from, what.What, err)
					}
				}
				if id != "" {
					_, _ = n.client.Call(t.Context(), wire.MethodSignal, wire.SignalRequest{ID: id, Signal: int(unix.SIGKILL), All: true}, nil) // it may have ended
					n.waitExit(id)
					n.call(wire.MethodDelete, wire.Ref{ID: id}, nil)
				}
			}
		})
	}
	n.t = t
}
