package oci

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// An executor that dies is replaced at once. One that hangs would hang for ever: no pod starts,
// no exit is seen, no output read. So every pingEvery it gets a call that only a working
// executor answers. After reportAfter unanswered pings in a row Trouble reports it; after
// killAfter it is killed, and thereby replaced.
//
// An upgrade may keep it busy for its own quiet time, 10 s, and memory shortage for longer than
// that.
const (
	pingEvery   = 5 * time.Second
	reportAfter = 4
	killAfter   = 12
)

// A processConn is a connection to an executor that is a process.
type processConn interface {
	// Pid returns the process at the other end of the connection.
	Pid() (int, error)
	// Kill sends SIGKILL to the process at the other end of the connection.
	Kill() error
}

// Trouble returns why containers can currently be neither started nor ended: the executor does
// not answer, or there is none. nil = they can.
func (r *Runtime) Trouble() error {
	if err := r.link.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// watch watches the executor until ctx ends.
func (l *link) watch(ctx context.Context) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	failed, logged := 0, false
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		case <-l.done:
			return
		}
		conn, err := l.ping(ctx)
		if err == nil {
			if logged {
				l.log.Info("executor answers again")
			}
			failed, logged = 0, false
			l.trouble.Store(nil)
			continue
		}
		if failed++; failed < reportAfter && !logged {
			continue
		}
		if !logged {
			l.log.Error("executor is in trouble", "err", err)
			logged = true
		}
		l.trouble.Store(&err)
		if m, ok := conn.(processConn); ok && failed >= killAfter {
			l.log.Error("executor is killed, to be replaced", "err", err, "kill", m.Kill())
			failed = 0 // its successor gets as long
		}
	}
}

// ping calls the current executor, or the one being settled. It takes up to pingEvery; any
// answer will do.
func (l *link) ping(ctx context.Context) (ExecutorConn, error) {
	ctx, cancel := context.WithTimeout(ctx, pingEvery)
	defer cancel()
	l.mu.Lock()
	conn, why := l.conn, l.why
	if conn == nil {
		conn = l.coming
	}
	l.mu.Unlock()
	if conn == nil {
		if why == nil {
			why = errors.New("it is being started")
		}
		return nil, fault.Unavailable.Errorf("no executor: %w", why)
	}
	_, err := conn.Call(ctx, wire.MethodPing, nil, nil)
	switch {
	case ctx.Err() != nil:
		return conn, fault.Unavailable.Errorf("executor has not answered within %v", pingEvery)
	case errors.Is(err, fault.Unavailable):
		return nil, fmt.Errorf("ask executor: %w", err) // it is gone, which keep handles
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		// If the executor answers, killing it would only start over.
		return nil, fault.Unavailable.Errorf("executor answers, but the containers are not settled yet")
	}
	return conn, nil
}
