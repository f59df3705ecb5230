package shim

import "context"

// The methods of the Task API.
// id is a container's; execID is that of a process started by Exec, "" for the container's own.

// Create creates a container; its process waits for Start. It returns the process's PID, as the
// shim says: it may be one inside of a sandbox, or that of the sandbox itself.
func (c *Client) Create(ctx context.Context, r CreateRequest) (pid int, err error) {
	return ask(ctx, c, "Create", r.encode(), decodePID)
}

// Start starts the process.
func (c *Client) Start(ctx context.Context, id, execID string) (pid int, err error) {
	return ask(ctx, c, "Start", ids(id, execID), decodePID)
}

// State returns the state of the process.
func (c *Client) State(ctx context.Context, id, execID string) (*State, error) {
	return ask(ctx, c, "State", ids(id, execID), decodeState)
}

// Wait returns once the process has exited.
func (c *Client) Wait(ctx context.Context, id, execID string) (*Exit, error) {
	return ask(ctx, c, "Wait", ids(id, execID), waitFields.decode)
}

// Kill sends a signal to the process; all = to every process of the container.
func (c *Client) Kill(ctx context.Context, id, execID string, signal int, all bool) error {
	m := ids(id, execID)
	m.uint(3, uint64(signal))
	m.bool(4, all)
	return c.do(ctx, "Kill", m)
}

// Exec adds a process to a running container. Start starts it, Delete forgets it.
func (c *Client) Exec(ctx context.Context, r ExecRequest) error { return c.do(ctx, "Exec", r.encode()) }

// ResizePty changes the size of the process's terminal.
func (c *Client) ResizePty(ctx context.Context, id, execID string, width, height uint16) error {
	m := ids(id, execID)
	m.uint(3, uint64(width))
	m.uint(4, uint64(height))
	return c.do(ctx, "ResizePty", m)
}

// CloseIO closes the process's stdin once what is in its FIFO has been read.
func (c *Client) CloseIO(ctx context.Context, id, execID string) error {
	m := ids(id, execID)
	m.bool(3, true)
	return c.do(ctx, "CloseIO", m)
}

// Stats returns the usage of the container: a message whose type the shim chooses, such as
// io.containerd.cgroups.v1.Metrics. It is nil if the shim has none.
func (c *Client) Stats(ctx context.Context, id string) (*Any, error) {
	return ask(ctx, c, "Stats", ids(id, ""), decodeStats)
}

// Pids returns the number of the container's processes. Which they are is not of use: the PIDs of some
// shims are of another kernel.
func (c *Client) Pids(ctx context.Context, id string) (n int, err error) {
	return ask(ctx, c, "Pids", ids(id, ""), decodeProcesses)
}

// Update changes the container's resources, see Resources.
func (c *Client) Update(ctx context.Context, id string, resources Any, annotations map[string]string) error {
	m := ids(id, "")
	m.any(2, &resources)
	m.entries(3, annotations)
	return c.do(ctx, "Update", m)
}

// Pause freezes the container.
func (c *Client) Pause(ctx context.Context, id string) error { return c.do(ctx, "Pause", ids(id, "")) }

// Resume thaws the container.
func (c *Client) Resume(ctx context.Context, id string) error {
	return c.do(ctx, "Resume", ids(id, ""))
}

// Checkpoint writes the processes of the container to the directory path.
func (c *Client) Checkpoint(ctx context.Context, id, path string, options *Any) error {
	m := ids(id, path)
	m.any(3, options)
	return c.do(ctx, "Checkpoint", m)
}

// Delete forgets a process that has exited, and returns how it ended.
func (c *Client) Delete(ctx context.Context, id, execID string) (*Exit, error) {
	return ask(ctx, c, "Delete", ids(id, execID), deleteFields.decode)
}

// Connect returns the PID of the shim, as it says; 0 = it does not.
func (c *Client) Connect(ctx context.Context, id string) (pid int, err error) {
	return ask(ctx, c, "Connect", ids(id, ""), decodePID)
}

// Shutdown has the shim end, if it has no container left; now = in any case. A shim may close the
// connection before it answers: that is no error.
func (c *Client) Shutdown(ctx context.Context, id string, now bool) error {
	m := ids(id, "")
	m.bool(2, now)
	return c.last(c.do(ctx, "Shutdown", m))
}

// last is the error of a call after which the shim ends.
func (c *Client) last(err error) error {
	select {
	case <-c.Done():
		return nil
	default:
		return err
	}
}
