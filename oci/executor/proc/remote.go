package proc

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A remote is what is known of a process that is not ours: it is another program's child, or runs on
// another kernel, and its PID may mean nothing here. The program that started it signals it, and
// tells how it ended.
type remote struct {
	signal func(unix.Signal) error
	once   sync.Once
	ended  chan struct{}
	code   int32 // as Code returns it; set before ended is closed, as the rest
	at     time.Time
	err    error
}

// Remote returns a process that signal signals, and that End ends.
func Remote(pid int, signal func(unix.Signal) error) *Process {
	return &Process{PID: pid, remote: &remote{signal: signal, ended: make(chan struct{})}}
}

// Foreign reports whether the process is a Remote.
func (p *Process) Foreign() bool { return p.remote != nil }

// End says how a Remote has ended, and when. The first call counts: the end may be learnt in several
// ways. err is that of Code.
func (p *Process) End(code int32, at time.Time, err error) {
	p.remote.once.Do(func() {
		p.remote.code, p.remote.at, p.remote.err = code, at, err
		close(p.remote.ended)
	})
}

// Ended is closed when a Remote has ended.
func (p *Process) Ended() <-chan struct{} { return p.remote.ended }

// EndedAt returns when a process ended, if that is known better than by its caller.
func (p *Process) EndedAt() time.Time {
	if p.remote == nil || p.remote.at.After(time.Now()) {
		return time.Time{}
	}
	return p.remote.at
}

// over reports whether a Remote has ended.
func (r *remote) over() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}
