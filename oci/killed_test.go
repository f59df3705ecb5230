package oci_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/oci"
)

// daemonEnv makes the test binary a daemon on the node that it describes.
const daemonEnv = "CRISP_OCI_TEST_DAEMON"

type daemonRequest struct {
	Node   [5]string // bin, dir, root, state, rootfs
	Starts [][]string
}

// daemon runs containers, prints their IDs, and waits to be killed.
func daemon(t *testing.T, request string) {
	var req daemonRequest
	if err := json.Unmarshal([]byte(request), &req); err != nil {
		t.Fatal(err)
	}
	n := &kernelNode{bin: req.Node[0], dir: req.Node[1], root: req.Node[2], state: req.Node[3], rootfs: req.Node[4]}
	r := n.Open(t)
	sb, err := r.CreateSandbox(t.Context(), oci.SandboxConfig{Hostname: "pod"})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Ready([]byte("extra")); err != nil {
		t.Fatal(err)
	}
	for _, args := range req.Starts {
		c, _ := n.create(t, r, sb, n.Spec(args...))
		if err := c.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		fmt.Printf("\nstarted %s %d\n", c.ID(), c.Status().Pid)
	}
	fmt.Println("\nready")
	select {}
}

// A daemon that is killed leaves its containers running and its sandbox as it was; the next
// one knows them, and the exit codes of those that ended meanwhile.
func TestDaemonKilled(t *testing.T) {
	if request := os.Getenv(daemonEnv); request != "" {
		daemon(t, request)
	}
	n := newKernelNode(t)
	request, err := json.Marshal(daemonRequest{
		Node:   [5]string{n.bin, n.dir, n.root, n.state, n.rootfs},
		Starts: [][]string{{"sleep", "for-ever"}, {"sleep", "500ms", "exit", "7"}, {"exit", "0"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "-test.run", "^TestDaemonKilled$")
	cmd.Env = append(os.Environ(), daemonEnv+"="+string(request))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var ids []string
	var pids []int
	ready := false
	for lines := bufio.NewScanner(out); !ready && lines.Scan(); {
		var id string
		var pid int
		if _, err := fmt.Sscanf(lines.Text(), "started %s %d", &id, &pid); err == nil {
			ids, pids = append(ids, id), append(pids, pid)
		}
		ready = lines.Text() == "ready"
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // killed
	if !ready {
		t.Fatal("the daemon did not get ready")
	}
	n.mu.Lock()
	n.ids = append(n.ids, ids...)
	n.mu.Unlock()
	for wait := time.Millisecond; wait < 30*time.Second; wait *= 2 {
		if _, err := os.Stat(filepath.Join(n.root, "containers", ids[1], "exit.json")); err == nil {
			break
		}
		time.Sleep(wait)
	}

	r := n.Open(t)
	var all []*oci.Container
	for _, id := range ids {
		c, err := r.Container(id)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	if st := all[0].Status(); st.State != oci.Running || st.Pid != pids[0] {
		t.Errorf("status is %+v, want running with pid %d", st, pids[0])
	}
	for i, code := range map[int]int32{1: 7, 2: 0} {
		<-all[i].Done()
		if st := all[i].Status(); st.ExitCode != code || st.FinishedAt.Before(st.StartedAt) || st.StartedAt.IsZero() {
			t.Errorf("status is %+v, want code %d", st, code)
		}
	}
	sandboxes := r.Sandboxes()
	if len(sandboxes) != 1 || sandboxes[0].State() != oci.SandboxReady || string(sandboxes[0].Extra()) != "extra" {
		t.Fatalf("sandboxes are %v", sandboxes)
	}
	if got := n.output(t, r, sandboxes[0], "hostname"); len(got) != 1 || got[0] != "pod" {
		t.Errorf("hostname in a new container is %q", got)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
}
