package shim

import (
	"context"
	"time"
)

// The methods of the Sandbox API that some shims serve: they make a pod's sandbox without a container of
// its own. Platform, whose answer for the pods of a node is the node's, and PingSandbox, which WaitSandbox
// has no use for, are not called; nor is UpdateSandbox, which containerd does not call either.

const sandboxService = "containerd.runtime.sandbox.v1.Sandbox/"

// PodConfig is the type of the Options of a SandboxRequest: CRI's configuration of a pod.
const PodConfig = "runtime.v1.PodSandboxConfig"

// A SandboxRequest is that of CreateSandbox.
type SandboxRequest struct {
	ID, Bundle  string
	Options     *Any
	NetNS       string // the path of the pod's network namespace; "" = the host's
	Annotations map[string]string
}

func (r SandboxRequest) encode() (m message) {
	m.string(1, r.ID)
	m.string(2, r.Bundle)
	m.any(4, r.Options)
	m.string(5, r.NetNS)
	m.entries(6, r.Annotations)
	return m
}

// CreateSandbox prepares a sandbox.
func (c *Client) CreateSandbox(ctx context.Context, r SandboxRequest) error {
	return c.do(ctx, sandboxService+"CreateSandbox", r.encode())
}

// StartSandbox starts it, and returns the PID of what the shim says it is in.
func (c *Client) StartSandbox(ctx context.Context, id string) (pid int, err error) {
	return ask(ctx, c, sandboxService+"StartSandbox", ids(id, ""), decodePID)
}

// WaitSandbox returns once the sandbox has ended.
func (c *Client) WaitSandbox(ctx context.Context, id string) (*Exit, error) {
	return ask(ctx, c, sandboxService+"WaitSandbox", ids(id, ""), waitFields.decode)
}

// SandboxStatus returns the state of a sandbox that was started: Running or Stopped.
func (c *Client) SandboxStatus(ctx context.Context, id string) (*State, error) {
	return ask(ctx, c, sandboxService+"SandboxStatus", ids(id, ""), decodeSandbox)
}

// StopSandbox ends the sandbox, and what is in it, within some time.
func (c *Client) StopSandbox(ctx context.Context, id string, within time.Duration) error {
	m := ids(id, "")
	m.uint(2, uint64(within/time.Second))
	return c.do(ctx, sandboxService+"StopSandbox", m)
}

// ShutdownSandbox removes the sandbox and has the shim end, as Shutdown.
func (c *Client) ShutdownSandbox(ctx context.Context, id string) error {
	return c.last(c.do(ctx, sandboxService+"ShutdownSandbox", ids(id, "")))
}

// SandboxMetrics returns the usage of the whole sandbox, as Stats that of a container.
func (c *Client) SandboxMetrics(ctx context.Context, id string) (*Any, error) {
	return ask(ctx, c, sandboxService+"SandboxMetrics", ids(id, ""), func(data []byte) (a *Any, err error) {
		return a, decode(data, func(number int, v value) error {
			if number != 1 || v.wire != bytesType {
				return nil
			}
			return decode(v.bytes, func(number int, v value) (err error) { // a containerd.types.Metric
				if number == 3 && v.wire == bytesType {
					a, err = decodeAny(v.bytes)
				}
				return err
			})
		})
	})
}

// notReady is the state of CRI that a sandbox has that was stopped.
const notReady = "SANDBOX_NOTREADY"

func decodeSandbox(data []byte) (*State, error) {
	s, state, exit := &State{Status: Running}, "", &Exit{}
	err := decode(data, func(number int, v value) error {
		switch number {
		case 1:
			return v.text(&s.ID)
		case 2:
			s.PID = v.pid()
		case 3:
			return v.text(&state)
		}
		return sandboxFields.set(exit, number, v)
	})
	if state == notReady || !exit.At.IsZero() && exit.At.Unix() != 0 {
		s.Status, s.Exit = Stopped, exit
	}
	return s, err
}
