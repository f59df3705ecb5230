package poke

import "testing"

func TestWake(t *testing.T) {
	c := make(chan struct{}, 1)
	for range 3 {
		Wake(c) // blocks if it waits for room
	}
	<-c
	select {
	case <-c:
		t.Error("three pokes that nobody has taken are more than one")
	default:
	}
	Wake(c)
	<-c // blocks if a poke after that is lost
}
