package runtime

import (
	"context"
	"errors"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/executor/shim"
	"github.com/crisp-cri/crisp/oci/executor/stdio"
)

// A shim that serves the Sandbox API makes the sandbox itself, from CRI's configuration of the pod. Its
// Task is one like those of containers, but for the calls behind it: its start is CreateSandbox and
// StartSandbox, its end WaitSandbox, and a signal is StopSandbox. As with containerd its bundle has no
// specification. The pod's containers are the Task API's.

// isSandbox reports whether t is a sandbox that its shim makes by the Sandbox API.
func (t *Task) isSandbox() bool { return t.SandboxAPI && t.Sandbox == t.id }

// startSandbox is Start for a sandbox.
func (t *Task) startSandbox(ctx context.Context, p *Plan) (*Started, error) {
	req := shim.SandboxRequest{
		ID: t.id, Bundle: t.dir, Options: &shim.Any{TypeURL: shim.PodConfig, Value: p.req.Shim.Pod}, Annotations: p.spec.Annotations,
	}
	for _, ns := range p.spec.Linux.Namespaces {
		if ns.Type == specs.NetworkNamespace {
			req.NetNS = ns.Path
		}
	}
	err := t.startShim(ctx)
	if err == nil {
		err = t.ask(ctx, shimStart, func(ctx context.Context, c *shim.Client) error { return c.CreateSandbox(ctx, req) })
	}
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, fault.WrongState.Errorf("shim %s does not serve the Sandbox API, by which it is to make sandboxes: %v", t.Path, err)
	}
	pid := 0
	if err == nil {
		err = t.ask(ctx, shimStart, func(ctx context.Context, c *shim.Client) (err error) {
			pid, err = c.StartSandbox(ctx, t.id)
			return err
		})
	}
	if err != nil {
		return nil, t.given(ctx, err)
	}
	if pid <= 0 {
		pid = t.ShimPID // what stands for it
	}
	t.settle(pid)
	return t.started(pid, &stdio.Ends{}), nil
}

// stopWithin is how long a shim is given to end a sandbox.
const stopWithin = shimCall / 2

// shutSandbox ends the sandbox and then the shim.
func (t *Task) shutSandbox() error {
	return t.askAnyway(context.Background(), shimCall, func(ctx context.Context, c *shim.Client) error {
		if t.process == nil || !t.process.Ending() {
			if err := c.StopSandbox(ctx, t.id, stopWithin); err != nil && fault.KindOf(err) != fault.NotFound {
				return err
			}
		}
		return c.ShutdownSandbox(ctx, t.id)
	})
}
