package executor

import (
	"testing"
	"time"
)

// eventually waits until so returns true, and fails the test after a minute.
func eventually(t *testing.T, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the condition does not become true")
		}
	}
}
