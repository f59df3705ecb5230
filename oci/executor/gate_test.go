package executor

import (
	"testing"
	"testing/synctest"
	"time"
)

// An upgrade that waits for a slow start must not hold up quick work: every container's
// output and exit.
func TestGateWaitsForSlowWorkOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		g.begin()
		closed := make(chan bool, 1)
		go func() { closed <- g.close(time.Minute, time.Second) }()
		synctest.Wait()
		g.enter()
		g.leave()
		begun := make(chan struct{})
		go func() { g.begin(); close(begun) }()
		synctest.Wait()
		select {
		case <-begun:
			t.Fatal("slow work began while the gate is being closed")
		default:
		}
		g.end()
		if !<-closed {
			t.Fatal("not closed, though nothing goes on")
		}
		entered := make(chan struct{})
		go func() { g.enter(); close(entered) }()
		synctest.Wait()
		select {
		case <-entered:
			t.Fatal("entered while shut")
		default:
		}
		g.open()
		<-begun
		<-entered
		if g.close(time.Minute, time.Second) {
			t.Fatal("closed over what goes on")
		}
		g.end()
		if g.close(time.Minute, time.Second) {
			t.Fatal("closed with somebody inside")
		}
		g.leave()
		if !g.close(time.Minute, time.Second) {
			t.Error("not closed at the end")
		}
	})
}
