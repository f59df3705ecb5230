package proc

import (
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
	left := func() int {
		pids, err := Marked(mark).list()
		if err != nil {
			t.Error(err)
		}
		return len(pids)
	}
	begun := 0
	cmd.Env, cmd.Stdout = append(os.Environ(), mark), writer(func() { begun = left(); cancel() })
	err := Attempt(ctx, "test", nil, cmd.Run, nil)
	if stuck := new(StuckError); errors.As(err, &stuck) {
		<-stuck.Over
	} else if err == nil {
		t.Error("it was not given up")
	}
	if begun < 4500 {
		t.Errorf("%d processes had begun", begun)
	}
	eventually(t, func() bool { return left() == 0 })
}

// A writer is called when something is written.
type writer func()

func (w writer) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}
