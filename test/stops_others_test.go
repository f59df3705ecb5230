package test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A container that stops every process it can see, including those of its exec probes, harms at
// most its own pod: the probes and exits of other pods continue, crispd can be restarted, and the
// pod can be removed.
func TestContainerThatStopsItsProbes(t *testing.T) {
	n, config := startNode(t)
	for _, name := range []string{"bad", "good"} {
		n.run(t, t.Context(), name)
	}
	for _, args := range [][]string{
		{"bad", "stops", "--", "testbin", "stop-others"},
		{"good", "works", "--", "testbin", "sleep", "for-ever"},
		{"good", "ends", "--", "testbin", "await", "/go", "exit", "7"},
	} {
		if err := n.createContainer(t.Context(), args); err != nil {
			t.Fatal(err)
		}
		if _, err := n.runtime().StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: n.ids[args[1]]}); err != nil {
			t.Fatal(err)
		}
	}
	probe := func(name string, timeout int64) (*cri.ExecSyncResponse, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		return n.runtime().ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: n.ids[name], Cmd: []string{"/testbin", "print", "alive"}, Timeout: timeout})
	}
	works := func() {
		t.Helper()
		if resp, err := probe("works", 60); err != nil || string(resp.Stdout) != "alive\n" {
			t.Errorf("the neighbour's probe: %q, %v", resp.GetStdout(), err)
		}
	}
	var probes sync.WaitGroup
	var hung atomic.Int32
	for range 20 {
		probes.Go(func() {
			if _, err := probe("stops", 1); err != nil { // the probe's timeout ends it, unless the exec was faster
				hung.Add(1)
			}
		})
		works()
	}
	probes.Wait()
	t.Logf("%d of 20 probes were stopped", hung.Load())
	dead := time.Now().Add(time.Minute) // orphaned processes are ended a little later
	for left := stopped(n.ids["stops"]); len(left) > 0; left = stopped(n.ids["stops"]) {
		if time.Now().After(dead) {
			t.Fatalf("stopped processes are left: %v", left)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if _, err := n.runtime().ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: n.ids["ends"], Cmd: []string{"/testbin", "write", "/go", ""}}); err != nil {
		t.Error(err)
	}
	for ended := false; !ended; time.Sleep(50 * time.Millisecond) {
		resp, err := n.runtime().ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: n.ids["ends"]})
		if err != nil {
			t.Fatal(err)
		}
		ended = resp.Status.State == cri.ContainerState_CONTAINER_EXITED
		if ended && resp.Status.ExitCode != 7 {
			t.Errorf("the neighbour ended with %d", resp.Status.ExitCode)
		}
		if time.Now().After(dead.Add(time.Minute)) {
			t.Fatal("the neighbour's exit is not reported")
		}
	}

	// A restart during probes does not wait for them.
	for range 5 {
		go probe("stops", 1)
	}
	time.Sleep(300 * time.Millisecond) // so that they have started
	if err := n.stopDaemon(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := n.start(config, nil); err != nil {
		t.Fatal(err)
	}
	t.Logf("crispd served %v after its restart", time.Since(begun).Round(time.Millisecond))
	works()
	n.remove(t, "bad", "good")
}

// stopped lists the stopped processes in a container's cgroups.
func stopped(id string) (found []string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		group, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		status, _ := os.ReadFile(filepath.Join(dir, "status"))
		if strings.Contains(string(group), id) && strings.Contains(string(status), "State:\tT (stopped)") {
			name, _, _ := strings.Cut(string(status), "\n")
			found = append(found, fmt.Sprint(filepath.Base(dir), " ", name))
		}
	}
	return found
}
