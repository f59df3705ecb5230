package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// An endpoint that can never be a runtime ends the agent with a one-line error.
func TestNoRuntimeThere(t *testing.T) {
	for name, test := range map[string]struct {
		serve func(t *testing.T, path string)
		want  string
	}{
		"file": {func(t *testing.T, path string) {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, " is not a socket"},
		"HTTP": {func(t *testing.T, path string) {
			s := httptest.NewUnstartedServer(http.NotFoundHandler())
			s.Listener = listen(t, path)
			s.Start()
			t.Cleanup(s.Close)
		}, "does not speak CRI: it is an HTTP/1 server"},
		"other words": {func(t *testing.T, path string) {
			l := listen(t, path)
			t.Cleanup(func() { l.Close() })
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					conn.Write([]byte("220 mail.example ESMTP\r\n"))
					conn.Close()
				}
			}()
		}, "does not speak CRI: it speaks another protocol"},
		"gRPC without CRI": {func(t *testing.T, path string) {
			s := grpc.NewServer()
			go s.Serve(listen(t, path))
			t.Cleanup(s.Stop)
		}, "does not speak CRI v1: unknown service runtime.v1.RuntimeService"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.socket = "unix://" + filepath.Join(n.dir, "other")
			test.serve(t, filepath.Join(n.dir, "other"))
			out, errs, code := n.crispFor(20*time.Second, "agent --root "+filepath.Join(n.dir, "agent"))
			if code != exitFailure || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, test.want) {
				t.Errorf("code %d, %s%swant %s", code, out, errs, test.want)
			}
		})
	}
}

func listen(t *testing.T, path string) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// The agent may start before its runtime, and the runtime may be down: pods keep running, the node
// and the health checks report it, and the agent recovers without help.
func TestRuntimeComesAndGoes(t *testing.T) {
	inRealTime(t)
	n := newCalls(t)
	n.manifest("web.yaml", webPod)
	n.agent()
	time.Sleep(1500 * time.Millisecond) // the agent has tried once, and will retry
	n.begin()
	n.until("get pods", `web +2/2 +Running +0 `)
	n.until("get nodes", ` Ready `)
	n.until("status -o json", `"health": "ok"`)
	before, _, _ := n.crisp("get pod web -o jsonpath={.status.containerStatuses[*].containerID}")
	n.forget()

	n.away()
	n.until("get nodes", ` NotReady`)
	n.until("status -o json", `"health": ".*runtime is not reachable`)
	n.begin()
	n.until("get nodes", ` Ready `)
	n.until("status -o json", `"health": "ok"`)
	n.until("get pods", `web +2/2 +Running +0 `)
	if after, _, _ := n.crisp("get pod web -o jsonpath={.status.containerStatuses[*].containerID}"); after != before {
		t.Errorf("the containers are %s, before they were %s", after, before)
	}
	if made := n.made("Stop", "Remove", "Run", "Create", "Start"); len(made) > 0 {
		t.Errorf("for the runtime's absence: %q", made)
	}
}
