package test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The executor has as many processes as it may have. What is started then, and after one or a few
// more, fails at once or works, and all of it can be removed while the limit is there.
func TestLimitOfProcesses(t *testing.T) {
	n, _ := startNode(t)
	n.expects(`"level":"ERROR"|level=ERROR`)
	limit := n.pidsLimit(t)
	call := func(call func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // crispd's undoing of a start may take 30
		defer cancel()
		err := call(ctx)
		if status.Code(err) == codes.DeadlineExceeded {
			t.Errorf("it is not reported at once: %v", err)
		}
		return err
	}
	n.run(t, t.Context(), "base")
	if err := n.createContainer(t.Context(), []string{"base", "running", "--", "testbin", "sleep", "for-ever"}); err != nil {
		t.Fatal(err)
	}
	start := func(name string) error {
		return call(func(ctx context.Context) error {
			_, err := n.runtime().StartContainer(ctx, &cri.StartContainerRequest{ContainerId: n.ids[name]})
			return err
		})
	}
	if err := start("running"); err != nil {
		t.Fatal(err)
	}
	// Go ends a program that gets no thread: the executor shall have as many as it will need.
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			exec := &cri.ExecSyncRequest{ContainerId: n.ids["running"], Cmd: []string{"/testbin", "sleep", "100ms"}}
			if _, err := n.runtime().ExecSync(t.Context(), exec); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	failed := 0
	for room := range 4 {
		for i, options := range [][]string{nil, {"tty"}} {
			name := fmt.Sprintf("c%d-%d", room, i)
			if err := n.createContainer(t.Context(), slices.Concat([]string{"base", name}, options, []string{"--", "testbin", "sleep", "for-ever"})); err != nil {
				t.Fatal(err)
			}
			limit(room)
			err := start(name)
			s, serr := n.runtime().ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: n.ids[name]})
			if err != nil {
				failed++
				if s.GetStatus().GetReason() != "StartError" {
					t.Errorf("status after %v is %v, %v", err, s.GetStatus(), serr)
				}
			}
			if err := call(func(ctx context.Context) error {
				_, err := n.runtime().RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: n.ids[name]})
				return err
			}); err != nil {
				t.Errorf("room for %d, %v: %v", room, options, err)
			}
			limit(-1)
		}
		pod, err := n.sandboxConfig(fmt.Sprintf("p%d", room), []string{"share-pid"})
		if err != nil {
			t.Fatal(err)
		}
		limit(room)
		if call(func(ctx context.Context) error {
			_, err := n.runtime().RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: pod})
			return err
		}) != nil {
			failed++
		}
		exec := &cri.ExecSyncRequest{ContainerId: n.ids["running"], Cmd: []string{"/testbin", "exit", "0"}, Timeout: 15}
		_ = call(func(ctx context.Context) error { _, err := n.runtime().ExecSync(ctx, exec); return err })
		all, err := n.runtime().ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, sb := range all.Items {
			if sb.Id == n.ids["base"] {
				continue
			}
			if err := call(func(ctx context.Context) error {
				_, err := n.runtime().StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: sb.Id})
				return err
			}); err != nil {
				t.Errorf("room for %d: %v", room, err)
			}
			if err := call(func(ctx context.Context) error {
				_, err := n.runtime().RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sb.Id})
				return err
			}); err != nil {
				t.Errorf("room for %d: %v", room, err)
			}
		}
		limit(-1)
		if err := call(func(ctx context.Context) error { _, err := n.runtime().ExecSync(ctx, exec); return err }); err != nil {
			t.Errorf("an exec without a limit: %v", err)
		}
	}
	if failed == 0 {
		t.Error("nothing has failed: is there a limit?")
	}
	n.remove(t, "base")
}

// pidsLimit returns a function that leaves the executor room for so many more processes and
// threads; -1: any number.
func (n *node) pidsLimit(t *testing.T) func(room int) {
	t.Helper()
	pid, err := n.executorPid()
	if err != nil {
		t.Fatal(err)
	}
	dir := func() string {
		for _, pattern := range []string{"/sys/fs/cgroup/pids/crisp-executor-*", "/sys/fs/cgroup/crisp-executor-*", "/sys/fs/cgroup/*/crisp-executor-*", "/sys/fs/cgroup/*/*/crisp-executor-*"} {
			dirs, _ := filepath.Glob(pattern)
			for _, dir := range dirs {
				procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
				if _, err := os.Stat(filepath.Join(dir, "pids.max")); err == nil && slices.Contains(strings.Fields(string(procs)), strconv.Itoa(pid)) {
					return dir
				}
			}
		}
		return ""
	}()
	if dir == "" {
		t.Skip("the executor is in no cgroup with a limit of processes")
	}
	return func(room int) {
		t.Helper()
		value := "max"
		if room >= 0 {
			current, err := os.ReadFile(filepath.Join(dir, "pids.current"))
			if err != nil {
				t.Fatal(err)
			}
			now, err := strconv.Atoi(strings.TrimSpace(string(current)))
			if err != nil {
				t.Fatal(err)
			}
			value = strconv.Itoa(now + room)
		}
		if err := os.WriteFile(filepath.Join(dir, "pids.max"), []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
}
