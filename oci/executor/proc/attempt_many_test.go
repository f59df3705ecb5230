package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Of a program with more children than are killed at once nothing is left: a child that was lost would
// have its output open.
func TestAttemptEndsManyChildren(t *testing.T) {
	mark := fmt.Sprintf("CRISP_TEST_FORKS=%d", os.Getpid())
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.Command("sh", "-c", "i=0; while [ $i -lt 4500 ]; do sleep 3600 & i=$((i+1)); done; echo; wait")
	cmd.Env, cmd.Stdout = append(os.Environ(), mark), writer(cancel)
	err := Attempt(ctx, "test", nil, cmd.Run, nil)
	if stuck := new(StuckError); errors.As(err, &stuck) {
		<-stuck.Over
	} else if err == nil {
		t.Error("it was not given up")
	}
	eventually(t, func() bool {
		for _, pid := range everyone() {
			if env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); bytes.Contains(env, []byte(mark+"\x00")) {
				return false
			}
		}
		return true
	})
}

// A writer is called when something is written.
type writer func()

func (w writer) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}
