package oci

import (
	"context"
	"os"

	"github.com/crisp-cri/crisp/oci/wire"
)

// An Attachment is a view of a container's stdio from now on. The caller owns its files: the
// outputs end when the container does, or when they are read too slowly (see
// wire.AttachRequest); closing all of them detaches.
type Attachment struct {
	Stdin, Stdout, Stderr *os.File // Stdin nil unless requested and open; Stderr nil with a terminal
}

// Attach opens the stdio of a running container (else fault.WrongState). With StdinOnce the
// container's stdin ends when the first attached client closes its stdin.
func (c *Container) Attach(ctx context.Context, stdin bool) (*Attachment, error) {
	if err := c.mustRun("attach to"); err != nil {
		return nil, err
	}
	files, err := c.rt.link.call(ctx, wire.MethodAttach, wire.AttachRequest{ID: c.id, Stdin: stdin}, nil)
	if err != nil {
		return nil, c.notRunning("attach to", err)
	}
	a := &Attachment{}
	assignFiles(files, map[string]**os.File{wire.FDStdin: &a.Stdin, wire.FDStdout: &a.Stdout, wire.FDStderr: &a.Stderr})
	return a, nil
}

// Resize sets the size of the container's terminal, in characters.
func (c *Container) Resize(ctx context.Context, width, height uint16) error {
	if err := c.mustRun("resize"); err != nil {
		return err
	}
	return c.notRunning("resize", c.rt.link.again(ctx, wire.MethodResize, wire.ResizeRequest{ID: c.id, Width: width, Height: height}, nil))
}

// ReopenLog switches the log to a new file at its path, which exists once ReopenLog returns. The
// container must be running, else fault.WrongState.
func (c *Container) ReopenLog(ctx context.Context) error {
	if err := c.mustRun("reopen the log of"); err != nil {
		return err
	}
	return c.notRunning("reopen the log of", c.rt.link.again(ctx, wire.MethodReopenLog, wire.Ref{ID: c.id}, nil))
}
