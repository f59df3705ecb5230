package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/test/noleaks"
)

// goroutines returns the number of goroutines by the function that they started with.
func goroutines(t *testing.T) map[string]int {
	t.Helper()
	var b bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
		t.Fatal(err)
	}
	all := noleaks.Begun(b.String())
	if len(all) == 0 {
		t.Fatalf("no goroutines in %q", b.String())
	}
	return all
}

// An agent runs for months, while pods come and go: no pod may leave a goroutine.
func TestAgentKeepsNothingOfPods(t *testing.T) {
	inRealTime(t)
	n := newNode(t)
	n.agent()
	n.until("status -o json", `"alive": true`)
	socket := filepath.Join(n.dir, "agent", "agent.sock")
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	ask := func(method, path, body string) string {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://agent/api/v1/namespaces/default/pods"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/yaml")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode >= 300 {
			t.Fatalf("%s %s: %s, %v", method, path, data, err)
		}
		return string(data)
	}
	work := func(from, k int) {
		for i := from; i < from+k; i++ {
			name := fmt.Sprintf("p%d", i)
			ask("POST", "", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: example.org/web:1
    livenessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
`, name))
		}
		for strings.Count(ask("GET", "", ""), `"ready":true`) < k {
			time.Sleep(50 * time.Millisecond)
		}
		for i := from; i < from+k; i++ {
			ask("DELETE", fmt.Sprintf("/p%d", i), "")
		}
		for strings.Contains(ask("GET", "", ""), `"name":"p`) {
			time.Sleep(50 * time.Millisecond)
		}
	}
	work(0, 3) // starts the permanent ones
	before := goroutines(t)
	work(10, 10)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		var more []string
		for began, count := range goroutines(t) {
			if was := before[began]; count > was && !strings.HasPrefix(began, "net/http.") {
				more = append(more, fmt.Sprintf("%s: %d, was %d", began, count, was))
			}
		}
		if len(more) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("goroutines are left of ten pods:\n%s", strings.Join(more, "\n"))
		}
	}
}
