package agent

import (
	"testing"
	"testing/synctest"
	"time"
)

// A loop that stands still is told of; one that waits for something to happen
// does not stand still.
func TestLoopHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &agent{}
		if a.LoopHealth() == nil {
			t.Error("well before it has begun")
		}
		a.beat.Store(time.Now().UnixNano())
		time.Sleep(stalled)
		if err := a.LoopHealth(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if a.LoopHealth() == nil {
			t.Error("well after two minutes of nothing")
		}
	})
}
