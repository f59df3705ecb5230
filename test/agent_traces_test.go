package test

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
)

// A collector keeps the bytes of the spans sent to it.
type collector struct {
	address string
	mu      sync.Mutex
	got     []byte // guarded by mu
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{address: l.Addr().String()}
	server := grpc.NewServer(grpc.ForceServerCodec(bytesCodec{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		var msg []byte
		if err := s.RecvMsg(&msg); err != nil {
			return err
		}
		c.mu.Lock()
		c.got = append(c.got, msg...)
		c.mu.Unlock()
		return s.SendMsg(nil)
	}))
	go server.Serve(l)
	t.Cleanup(server.Stop)
	return c
}

// count returns how often text is in the spans.
func (c *collector) count(text string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Count(c.got, []byte(text))
}

// crispd's and the agent's spans of a pod are in one trace.
func TestAgentTraces(t *testing.T) {
	n, config := startNode(t)
	c := newCollector(t)
	n.restart(t, config, "[tracing]\nendpoint = \""+c.address+"\"\nsamples_per_million = 1000000\n")
	manifests := filepath.Join(n.dir, "manifests")
	if err := os.Mkdir(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	a := &agentProcess{t: t, n: n, manifests: manifests, flags: []string{"--tracing-endpoint", c.address, "--tracing-samples-per-million", "1000000"}}
	a.start()
	file := filepath.Join(manifests, "web.yaml")
	if err := os.WriteFile(file, []byte(tracedPod), 0o644); err != nil {
		t.Fatal(err)
	}
	a.until(func() bool { return len(n.running(t)) == 1 && c.count("until ready") > 0 }, "the pod is ready, and the agent has said so")
	a.until(func() bool { return c.count("StartContainer") > 0 }, "crispd has sent its spans")
	for _, want := range []string{"crisp-agent", "crispd", "pod default/web", "readiness probe", "volumes", "RunPodSandbox"} {
		if c.count(want) == 0 {
			t.Errorf("no %q was sent", want)
		}
	}
	if n := len(c.traces("until ready", "RunPodSandbox", "StartContainer")); n != 1 {
		t.Errorf("the spans are in %d traces", n)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	pods := filepath.Join(n.agentRoot(), "pods")
	a.until(func() bool { left, err := os.ReadDir(pods); return err == nil && len(left) == 0 }, pods+" is empty")
	a.end(syscall.SIGTERM)
}

// traces returns the traces of the spans with these names. A span is a message whose first
// field is its trace ID, 16 bytes; the fifth is its name.
func (c *collector) traces(names ...string) map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := map[string]bool{}
	for _, name := range names {
		field := append([]byte{5<<3 | 2, byte(len(name))}, name...)
		for rest := c.got; ; {
			i := bytes.Index(rest, field)
			if i < 0 {
				break
			}
			if at := bytes.LastIndex(rest[:i], []byte{1<<3 | 2, 16}); at >= 0 && at+18 <= i {
				found[string(rest[at+2:at+18])] = true
			}
			rest = rest[i+len(field):]
		}
	}
	return found
}

const tracedPod = `apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: app, image: ` + testImage + `, imagePullPolicy: Never, args: [sleep, for-ever], readinessProbe: {exec: {command: [/testbin, print, ok]}, periodSeconds: 1, timeoutSeconds: 60}}
`
