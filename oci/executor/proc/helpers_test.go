package proc

import (
	"os/exec"
	"testing"
	"time"
)

// sleeping starts a process that ends with the test.
func sleeping(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

// eventually waits until so returns true, and fails the test after a minute.
func eventually(t *testing.T, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the condition does not become true")
		}
	}
}

// blocked is how long a process may take to end when it was killed by mistake.
const blocked = 200 * time.Millisecond
