package server

import "sync"

// A detached is what runs without a caller who waits for it. Close waits for all of it,
// while calls still come in, which a sync.WaitGroup does not allow: one that is idle
// must not be added to while somebody waits.
type detached struct {
	mu      sync.Mutex
	running int           // guarded by mu
	closing bool          // guarded by mu
	idle    chan struct{} // closed when nothing runs; nil = nobody waits; guarded by mu
}

// run runs f and returns true, unless close has returned, or is about to: what began
// then would use what is closed next. What runs may begin more until the last of it has
// ended.
func (d *detached) run(f func()) bool {
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

// wait returns when nothing runs.
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

// close is wait, after which nothing begins any more.
func (d *detached) close() {
	d.mu.Lock()
	d.closing = true
	d.mu.Unlock()
	d.wait()
}
