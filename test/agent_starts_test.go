package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Each file that the agent has on the disk is broken once while it does not run: empty, cut in half,
// or garbage. Or all files are of another time. It starts all the same, keeps the pods of its
// manifests running, and takes new ones.
func TestAgentStartsWithBrokenFiles(t *testing.T) {
	n, _ := startNode(t)
	n.expects(`"level":"ERROR"|level=ERROR`)
	for _, dir := range []string{n.manifests(), n.agentRoot()} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	pod := func(name string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: app, image: %q, imagePullPolicy: Never, args: [sleep, for-ever]}]}}\n", name, testImage)
	}
	put := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(n.manifests(), name+".yaml"), []byte(pod(name)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	a := &agentProcess{t: t, n: n, manifests: n.manifests(), flags: []string{"--listen", "127.0.0.1:0"}}
	runs := func(name string) {
		t.Helper()
		a.until(func() bool {
			out, _ := a.crisp("", "get", "pods")
			for line := range strings.Lines(out) {
				if f := strings.Fields(line); len(f) > 2 && f[0] == name && f[2] == "Running" {
					return true
				}
			}
			return false
		}, name+" runs")
	}
	put("web")
	a.start()
	tried := map[string]bool{}
	for round, last := 0, 0; round-last <= len(breakages); round++ {
		a.until(func() bool { _, code := a.crisp(pod("stored"), "apply", "-f", "-"); return code == 0 }, "a pod is stored")
		runs("stored")
		if out, code := a.crisp("", "stop", "stored", "--timeout", "5m"); code != 0 {
			t.Fatalf("stop: %s", out)
		}
		runs("web")
		a.end(syscall.SIGTERM)
		how := breakages[round%len(breakages)]
		what := how.name + " nothing"
		if path := how.breakNext(t, filesBelow(t, n.agentRoot()), tried); path != "" {
			last, what = round, how.name+" "+path
		}
		if what == how.name+" nothing" {
			for _, path := range filesBelow(t, n.agentRoot()) {
				at := time.Date([]int{1970, 2100}[round%2], 1, 2, 0, 0, 0, 0, time.UTC)
				if err := os.Chtimes(path, at, at); err != nil {
					t.Fatal(err)
				}
			}
		}
		t.Log(what)
		a.start()
		put("later")
		runs("later")
		if err := os.Remove(filepath.Join(n.manifests(), "later.yaml")); err != nil {
			t.Fatal(err)
		}
		a.crisp("", "delete", "pod", "stored", "--timeout", "5m") // its record may be the broken file
	}
	if err := os.Remove(filepath.Join(n.manifests(), "web.yaml")); err != nil {
		t.Fatal(err)
	}
	a.until(func() bool {
		out, _ := a.crisp("", "get", "pods")
		return !strings.Contains(out, "web") && !strings.Contains(out, "later")
	}, "no pod is left")
	a.end(syscall.SIGTERM)
	t.Logf("%d kinds of files", len(tried))
}
