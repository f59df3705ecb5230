package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/crisp-cri/crisp/oci"
)

// maxOutput is how much of each stream is kept, in bytes. CRI: "The runtime
// should cap the output of this response to 16MB. […] the remaining output should
// be discarded, and the command should proceed with no error."
const maxOutput = 16 << 20

// maxAnswer is how much of both streams together is kept, in bytes: a client cannot receive a
// response larger than a message less its framing.
const maxAnswer = maxMessage - 1<<10

// ExecSync runs a command and returns its output and exit code.
//
// When the timeout has passed, the command and all that it started are killed,
// and the error is DeadlineExceeded: only by that code does the kubelet know
// that a probe has failed. The same happens when the caller leaves.
func (s *Server) ExecSync(ctx context.Context, req *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
	if len(req.Cmd) == 0 {
		return nil, fault.Invalid.Errorf("exec in container %s names no command", req.ContainerId)
	}
	if req.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, seconds(req.Timeout))
		defer cancel()
	}
	stage.Next(ctx, "start")
	x, err := s.startExec(ctx, req.ContainerId, req.Cmd, oci.ExecConfig{})
	if err != nil {
		return nil, err
	}
	defer x.Close()
	var out, errOut capped
	var output outputs
	output.copy(&out, x.Stdout)
	output.copy(&errOut, x.Stderr)
	stage.Next(ctx, "run")
	code, err := waitOrKill(ctx, x)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return nil, fmt.Errorf("command %q timed out after %ds: %w", req.Cmd, req.Timeout, err)
		}
		return nil, fmt.Errorf("command %q: %w", req.Cmd, err)
	}
	stage.Next(ctx, "output")
	output.drain()
	resp := &cri.ExecSyncResponse{ExitCode: code, Stdout: out.buf.Bytes(), Stderr: errOut.buf.Bytes()}
	fit(resp)
	return resp, nil
}

// fit cuts the longer stream until the response can be received.
func fit(r *cri.ExecSyncResponse) {
	over := len(r.Stdout) + len(r.Stderr) - maxAnswer
	if over <= 0 {
		return
	}
	long, short := &r.Stdout, &r.Stderr
	if len(*short) > len(*long) {
		long, short = short, long
	}
	cut := min(over, len(*long)-len(*short))
	*long = (*long)[:len(*long)-cut]
	if over -= cut; over > 0 { // both are equal now
		*long = (*long)[:len(*long)-(over+1)/2]
		*short = (*short)[:len(*short)-over/2]
	}
}

// capped keeps the first maxOutput bytes and drops the rest.
type capped struct{ buf bytes.Buffer }

func (c *capped) Write(p []byte) (int, error) {
	c.buf.Write(p[:min(len(p), maxOutput-c.buf.Len())])
	return len(p), nil
}
