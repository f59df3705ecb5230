package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/network/bridge"
)

// Destroy removes the bridge and the nftables table of the default network, and the devices of
// pods that are still attached to it. The next Attach recreates bridge and table.
// net.ipv4.ip_forward stays on: others may depend on it by now.
func (n *Network) Destroy(ctx context.Context) error {
	d := &bridge.Net{DataDir: n.o.DataDir}
	d.Name, d.Bridge = names(n.o.Instance)
	if err := errors.Join(n.reaper.finish(), d.Destroy(ctx)); err != nil {
		return fmt.Errorf("network %s: %w", d.Name, err)
	}
	return nil
}

// patience is how long a detached pod's device may wait to be destroyed with its namespace,
// which costs the kernel less than deleting it alone, and us nothing.
const patience = 2 * time.Second

// A reaper deletes devices after a while. Those that remain when the process ends are left to
// GC. The zero reaper is ready for use.
type reaper struct {
	mu      sync.Mutex
	waiting map[int]*doomed // by the device's index, which the kernel does not reuse
}

type doomed struct {
	timer *time.Timer
	done  chan struct{} // closed when the device is gone
}

func (r *reaper) add(index int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting[index] != nil {
		return
	}
	if r.waiting == nil {
		r.waiting = make(map[int]*doomed)
	}
	d := &doomed{done: make(chan struct{})}
	r.waiting[index] = d
	d.timer = time.AfterFunc(patience, func() { r.reap(index, d) }) // after an error GC finds it again
}

func (r *reaper) reap(index int, d *doomed) error {
	err := bridge.DeleteLink(index)
	r.mu.Lock()
	delete(r.waiting, index)
	r.mu.Unlock()
	close(d.done)
	return err
}

// finish deletes the waiting devices and returns when they are gone.
func (r *reaper) finish() error {
	r.mu.Lock()
	waiting := maps.Clone(r.waiting)
	r.mu.Unlock()
	// All at once: each deletion waits for a grace period of the kernel.
	results := make(chan error)
	for index, d := range waiting {
		go func() {
			if d.timer.Stop() {
				results <- r.reap(index, d)
				return
			}
			<-d.done
			results <- nil
		}()
	}
	var errs []error
	for range waiting {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}
