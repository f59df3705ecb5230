package server

import "sync"

// A detached is the set of functions that run without a caller waiting for them. Close
// waits for all of them while calls still come in, which a sync.WaitGroup does not
// allow: nothing may be added to an idle one while somebody waits.
type detached struct {
	mu      sync.Mutex
	running int           // guarded by mu
	closing bool          // guarded by mu
	idle    chan struct{} // closed when nothing runs; nil = no waiter; guarded by mu
}

// start runs f and returns true, unless close has returned or is about to: f would then
// use what is closed next. A running function may begin more of them until the last one
// has ended.
func (d *detached) start(f func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing && d.running == 0 {
		return false
	}
	d.running++
	go func() {
		defer d.end()
		f()
	}()
	return true
}

func (d *detached) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running--
	if d.running == 0 && d.idle != nil {
		close(d.idle)
		d.idle = nil
	}
}

// wait returns when no function runs.
func (d *detached) wait() {
	d.mu.Lock()
	if d.running == 0 {
		d.mu.Unlock()
		return
	}
	if d.idle == nil {
		d.idle = make(chan struct{})
	}
	idle := d.idle
	d.mu.Unlock()
	<-idle
}

// close is wait, and no function can begin after it.
func (d *detached) close() {
	d.mu.Lock()
	d.closing = true
	d.mu.Unlock()
	d.wait()
}
