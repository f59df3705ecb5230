package test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// crispd is killed ten times: a container that writes a numbered line every millisecond
// loses none and keeps its PID, one that exits meanwhile has the right exit code and finish
// time, and an exec works right afterwards.
func TestTenKills(t *testing.T) {
	const lines = 5000
	n, config := startNode(t)
	start := func() {
		t.Helper()
		if err := n.start(config, nil); err != nil {
			t.Fatal(err)
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	sb, err := n.sandboxConfig("p", []string{"host-network"})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := n.runtime().RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: sb})
	if err != nil {
		t.Fatal(err)
	}
	n.ids["p"], n.sandboxes["p"] = resp.PodSandboxId, sb
	run := func(name string, command ...string) {
		t.Helper()
		if err := n.createContainer(ctx, append([]string{"p", name, "--", "testbin"}, command...)); err != nil {
			t.Fatal(err)
		}
		if _, err := n.runtime().StartContainer(ctx, &cri.StartContainerRequest{ContainerId: n.ids[name]}); err != nil {
			t.Fatal(err)
		}
	}
	status := func(name string) *cri.ContainerStatusResponse {
		t.Helper()
		s, err := n.runtime().ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: n.ids[name], Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	run("writer", "count", strconv.Itoa(lines), "1ms", "sleep", "for-ever")
	pid := pidOf(t, "count")

	for i := range 10 {
		quitter := "quitter" + strconv.Itoa(i)
		began := time.Now()
		run(quitter, "sleep", "100ms", "exit", strconv.Itoa(10+i))
		if err := n.stopDaemon(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for record := filepath.Join(n.root, "containers", n.ids[quitter], "exit.json"); !testenv.Exists(record); time.Sleep(10 * time.Millisecond) {
			if ctx.Err() != nil {
				t.Fatalf("%s did not end", quitter)
			}
		}
		ended := time.Now()
		start()

		if r, err := n.runtime().ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: n.ids["writer"], Cmd: []string{"/testbin", "print", "here"}}); err != nil || string(r.Stdout) != "here\n" {
			t.Fatalf("exec after restart %d: %v, %q", i, err, r.GetStdout())
		}
		s := status(quitter).Status
		if s.State != cri.ContainerState_CONTAINER_EXITED || s.ExitCode != int32(10+i) {
			t.Errorf("%s is %v with code %d, want exited with %d", quitter, s.State, s.ExitCode, 10+i)
		}
		if at := time.Unix(0, s.FinishedAt); at.Before(began) || at.After(ended) {
			t.Errorf("%s finished at %v, want within %v … %v", quitter, at, began, ended)
		}
		if got := pidOf(t, "count"); got != pid || status("writer").Status.State != cri.ContainerState_CONTAINER_RUNNING {
			t.Fatalf("the writer is %v with PID %d, want running with %d", status("writer").Status.State, got, pid)
		}
	}

	for { // wait for the last line
		if last := []byte(" F " + strconv.Itoa(lines-1) + "\n"); bytes.HasSuffix(read(t, n.logFile("writer")), last) {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the last line is not in the log")
		}
		time.Sleep(20 * time.Millisecond)
	}
	want := 0
	for line := range bytes.Lines(read(t, n.logFile("writer"))) {
		fields := bytes.Fields(line)
		if got := string(fields[len(fields)-1]); got != strconv.Itoa(want) {
			t.Fatalf("line %d of the log is %s", want, got)
		}
		want++
	}
	if want != lines {
		t.Errorf("the log has %d lines, want %d", want, lines)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
