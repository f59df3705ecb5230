package server

import "sync"

// A detached runs functions for which no caller waits. Server.Close waits for all of them while
// calls still arrive; sync.WaitGroup does not allow Add on an idle group while Wait runs.
type detached struct {
	mu      sync.Mutex
	running int       // guarded by mu
	closing bool      // guarded by mu
	idle    sync.Cond // signalled when running reaches 0; the first wait sets its L to mu
}

// start runs f in a goroutine and returns true. It returns false once close has returned or is
// about to: f would use what is closed next. A running function may start others until the last
// one has ended.
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
	if d.running == 0 {
		d.idle.Broadcast()
	}
}

// wait returns when no function runs.
func (d *detached) wait() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.idle.L == nil {
		d.idle.L = &d.mu
	}
	for d.running > 0 {
		d.idle.Wait()
	}
}

// close waits until no function runs; none can start afterwards.
func (d *detached) close() {
	d.mu.Lock()
	d.closing = true
	d.mu.Unlock()
	d.wait()
}
