package executor

import "github.com/crisp-cri/crisp/internal/fault"

// CloseIdle is Close for the end of the machine: only containers that are alive
// prevent it. How the others ended is on disk, for whoever wants to know.
func (x *Executor) CloseIdle() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, c := range x.containers {
		if c.phase == starting || c.phase == running {
			return fault.WrongState.Errorf("container %s is alive", id)
		}
	}
	select {
	case <-x.quit:
	default:
		x.listener.Close() // removes the socket
		close(x.quit)
	}
	return nil
}
