package server

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/crisp-cri/crisp/oci"
)

// maxOutput is how much of each stream is kept, in bytes. CRI: "The runtime
// should cap the output of this response to 16MB. […] the remaining output should
// be discarded, and the command should proceed with no error."
const maxOutput = 16 << 20

// maxAnswer is how much of both streams together is returned, in bytes: a client cannot receive a
// response larger than a message less its framing.
const maxAnswer = maxMessage - 1<<10

// freeOutput is how much of each stream is kept in any case, in bytes, and maxOutputs how much the
// calls under way together keep beyond that: what any pod may print in a probe must not fill the
// node's memory. The kubelet keeps 10 KiB of a probe's output (maxReadLength).
const (
	freeOutput = 64 << 10
	maxOutputs = 64 << 20
)

// ExecSync runs a command and returns its output and exit code.
//
// When the timeout has passed, the command and all that it started are killed,
// and the error is DeadlineExceeded: only by that code does the kubelet know
// that a probe has failed. The same happens when the caller leaves.
func (s *Server) ExecSync(ctx context.Context, req *cri.ExecSyncRequest) (_ *cri.ExecSyncResponse, err error) {
	if len(req.Cmd) == 0 {
		return nil, fault.Invalid.Errorf("exec in container %s names no command", req.ContainerId)
	}
	if req.Timeout > 0 {
		limited, cancel := context.WithTimeout(ctx, seconds(req.Timeout))
		defer cancel()
		defer func() { err = overdue(limited, err) }()
		ctx = limited
	}
	stage.Next(ctx, "start")
	x, err := s.startExec(ctx, req.ContainerId, req.Cmd, oci.ExecConfig{})
	if err != nil {
		return nil, err
	}
	out, errOut := capped{all: &s.outputs}, capped{all: &s.outputs}
	var output outputs
	defer func() {
		x.Close() // ends the copying, though a process that was left behind holds the other end
		output.copying.Wait()
		s.outputs.release(&out, &errOut)
	}()
	output.copy(&out, x.Stdout)
	output.copy(&errOut, x.Stderr)
	stage.Next(ctx, "run")
	code, err := waitOrKill(ctx, x)
	if err != nil {
		if ctx.Err() == context.DeadlineExceeded {
			return nil, fmt.Errorf("command %q timed out after %ds: %w", req.Cmd, req.Timeout, err)
		}
		return nil, fmt.Errorf("command %q: %w", req.Cmd, err)
	}
	stage.Next(ctx, "output")
	output.drain()
	if dropped := out.denied + errOut.denied; dropped > 0 {
		s.log.WarnContext(ctx, "output of commands fills its memory, some was dropped", "kept", out.kept+errOut.kept, "dropped", dropped)
	}
	outLen, errLen := fit(out.kept, errOut.kept)
	return &cri.ExecSyncResponse{ExitCode: code, Stdout: out.take(outLen), Stderr: errOut.take(errLen)}, nil
}

// fit returns how much of two streams of these lengths to return: it cuts the longer one until the
// response can be received.
func fit(out, err int) (outLen, errLen int) {
	over := max(0, out+err-maxAnswer)
	long, short := &out, &err
	if err > out {
		long, short = short, long
	}
	cut := min(over, *long-*short)
	*long -= cut
	over -= cut // if there is still more, both are equal now
	*long -= (over + 1) / 2
	*short -= over / 2
	return out, err
}

// outputMemory is the memory that the outputs of all commands share.
type outputMemory struct {
	used   atomic.Int64 // bytes
	filled atomic.Bool  // much of it was used since it was last given back
}

// reserve reserves n bytes unless they are not there.
func (m *outputMemory) reserve(n int) bool {
	if m.used.Add(int64(n)) > maxOutputs {
		m.used.Add(-int64(n))
		return false
	}
	return true
}

// release gives back what the streams of a call have reserved. The last call after much output
// returns the memory to the kernel as well, which Go does only over minutes.
func (m *outputMemory) release(streams ...*capped) {
	for _, c := range streams {
		if m.used.Load() > maxOutputs/4 {
			m.filled.Store(true)
		}
		if m.used.Add(-int64(c.reserved)) == 0 && m.filled.CompareAndSwap(true, false) {
			time.AfterFunc(giveBackTime, debug.FreeOSMemory)
		}
	}
}

// giveBackTime is how long after the last call its response has most likely been sent.
const giveBackTime = 5 * time.Second

// capped keeps the first maxOutput bytes and drops the rest. It drops more if other commands use
// the memory, but never of the first freeOutput bytes.
type capped struct {
	all      *outputMemory
	chunks   [][]byte // not one slice, which would be copied as it grows
	kept     int      // bytes in chunks
	reserved int      // bytes of chunks beyond freeOutput
	denied   int      // bytes dropped for lack of memory
}

// Write keeps what it can of p; it never fails.
func (c *capped) Write(p []byte) (int, error) {
	all := len(p)
	for p = p[:min(all, maxOutput-c.kept)]; len(p) > 0; {
		last := len(c.chunks) - 1
		if last < 0 || len(c.chunks[last]) == cap(c.chunks[last]) {
			if c.denied > 0 || !c.grow() {
				c.denied += len(p)
				break
			}
			last++
		}
		n := min(len(p), cap(c.chunks[last])-len(c.chunks[last]))
		c.chunks[last] = append(c.chunks[last], p[:n]...)
		c.kept += n
		p = p[n:]
	}
	return all, nil
}

// grow adds a chunk as large as all before, from 4 KiB up to freeOutput.
func (c *capped) grow() bool {
	size := min(max(c.kept, 4<<10), freeOutput)
	if c.kept >= freeOutput {
		if !c.all.reserve(size) {
			return false
		}
		c.reserved += size
	}
	c.chunks = append(c.chunks, make([]byte, 0, size))
	return true
}

// take returns the first n bytes and drops each chunk as it is copied.
func (c *capped) take(n int) []byte {
	b := make([]byte, 0, n)
	for i, chunk := range c.chunks {
		b = append(b, chunk[:min(len(chunk), n-len(b))]...)
		c.chunks[i] = nil
	}
	return b
}
