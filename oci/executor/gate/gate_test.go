package gate

import (
	"testing"
	"testing/synctest"
	"time"
)

// An upgrade that waits for a slow start must not hold up quick work: every container's
// output and exit.
func TestGateWaitsForSlowWorkOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		g.Begin()
		closed := make(chan bool, 1)
		go func() { closed <- g.Close(time.Minute, time.Second) }()
		synctest.Wait()
		g.Enter()
		g.Leave()
		begun := make(chan struct{})
		go func() { g.Begin(); close(begun) }()
		synctest.Wait()
		select {
		case <-begun:
			t.Fatal("slow work began while the gate is being closed")
		default:
		}
		g.End()
		if !<-closed {
			t.Fatal("not closed, though nothing goes on")
		}
		entered := make(chan struct{})
		go func() { g.Enter(); close(entered) }()
		synctest.Wait()
		select {
		case <-entered:
			t.Fatal("entered while shut")
		default:
		}
		g.Open()
		<-begun
		<-entered
		if g.Close(time.Minute, time.Second) {
			t.Fatal("closed over what goes on")
		}
		g.End()
		if g.Close(time.Minute, time.Second) {
			t.Fatal("closed with work inside")
		}
		g.Leave()
		if !g.Close(time.Minute, time.Second) {
			t.Error("not closed at the end")
		}
	})
}
