package main

import (
	"bytes"
	"context"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// calls records the calls that change something on a node's runtime, in the order in which they
// ended: "CreateContainer app". Tests can stop the server in front of the runtime, and can
// intercept each call.
type calls struct {
	*node

	mu   sync.Mutex
	list []string          // guarded by mu
	hook func(call string) // before each call; may block; guarded by mu
}

// newCalls is newNode with a record of calls. The runtime answers after begin.
func newCalls(t *testing.T) *calls {
	c := &calls{node: newNode(t)}
	c.away()
	return c
}

// begin makes the runtime answer.
func (c *calls) begin() {
	c.t.Helper()
	c.serve(c.note)
}

func (c *calls) note(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	call := c.describe(path.Base(info.FullMethod), req)
	if call == "" {
		return handle(ctx, req)
	}
	c.mu.Lock()
	hook := c.hook
	c.mu.Unlock()
	if hook != nil {
		hook(call)
	}
	resp, err := handle(ctx, req)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.list = append(c.list, call)
	}
	return resp, err
}

// describe returns the call and the name, not the ID, of its object; "" if the call changes
// nothing.
func (c *calls) describe(method string, req any) string {
	s := c.runtime.RuntimeService
	s.Lock()
	defer s.Unlock()
	sandbox := func(id string) string {
		if sb := s.Sandboxes[id]; sb != nil {
			return method + " " + sb.Metadata.Name
		}
		return method + " ?"
	}
	container := func(id string) string {
		if ctr := s.Containers[id]; ctr != nil {
			return method + " " + ctr.Metadata.Name
		}
		return method + " ?"
	}
	switch r := req.(type) {
	case *cri.RunPodSandboxRequest:
		return method + " " + r.Config.Metadata.Name
	case *cri.StopPodSandboxRequest:
		return sandbox(r.PodSandboxId)
	case *cri.RemovePodSandboxRequest:
		return sandbox(r.PodSandboxId)
	case *cri.CreateContainerRequest:
		return method + " " + r.Config.Metadata.Name
	case *cri.StartContainerRequest:
		return container(r.ContainerId)
	case *cri.StopContainerRequest:
		return container(r.ContainerId)
	case *cri.RemoveContainerRequest:
		return container(r.ContainerId)
	case *cri.PullImageRequest:
		return method + " " + r.Image.Image
	}
	return ""
}

// onCall sets the function that runs before each call.
func (c *calls) onCall(f func(call string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hook = f
}

// made returns the calls with one of the prefixes since the last forget.
func (c *calls) made(prefixes ...string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.list), func(call string) bool {
		return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(call, p) })
	})
}

func (c *calls) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = nil
}

// await waits until yes returns true.
func (n *node) await(what string, yes func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !yes(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("not so after 30 s: %s", what)
		}
	}
}

// A journal is an agent's log, which can be read while the agent runs.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}
