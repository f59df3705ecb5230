// Package gatetest shuts the executor's gate under work in tests, as an upgrade does.
package gatetest

import (
	"testing"
	"time"

	"github.com/crisp-cri/crisp/oci/executor/gate"
)

// Shut begins an upgrade, as far as the gate is concerned, and returns when the gate is shut. The
// channel gets whether the upgrade was completed.
func Shut(t *testing.T, g *gate.Gate) <-chan bool {
	t.Helper()
	closed := make(chan bool, 1)
	go func() { closed <- g.Close(time.Minute, 20*time.Second) }()
	Await(t, g, func(_ int, shut bool) bool { return shut })
	return closed
}

// Await waits until the gate's state is as wanted.
func Await(t *testing.T, g *gate.Gate, is func(inside int, shut bool) bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if inside, _, shut := g.State(); is(inside, shut) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the gate is not as it should be")
		}
	}
}

// Blocked is the time in which a goroutine should reach its wait for the gate. If it takes longer,
// a test that should fail passes.
const Blocked = 200 * time.Millisecond
