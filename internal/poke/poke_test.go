package poke

import "testing"

func TestWake(t *testing.T) {
	c := make(chan struct{}, 1)
	for range 3 {
		Wake(c) // would block if it waited for room
	}
	<-c
	select {
	case <-c:
		t.Error("three pokes without a reader are more than one")
	default:
	}
	Wake(c)
	<-c // would block if a later poke were lost
}
