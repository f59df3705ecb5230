package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"
)

// Of a program that forks while it is ended nothing is left, even if it hardly ever gets a processor,
// or has more children than are killed at once: what was left would have its output open.
func TestAttemptEndsWhatForks(t *testing.T) {
	for name, script := range map[string]string{
		"slow": "while :; do sleep 3600 & done",
		"many": "i=0; while [ $i -lt 4500 ]; do sleep 3600 & i=$((i+1)); done; echo; wait",
	} {
		t.Run(name, func(t *testing.T) {
			mark := fmt.Sprintf("CRISP_TEST_FORKS=%d-%s", os.Getpid(), name)
			args, tries := []string{"sh", "-c", script}, 1
			if name == "slow" {
				args, tries = append([]string{"chrt", "--idle", "0"}, args...), 5
				for range runtime.NumCPU() {
					hog := exec.Command("sh", "-c", "while :; do :; done")
					if err := hog.Start(); err != nil {
						t.Fatal(err)
					}
					defer hog.Wait()
					defer hog.Process.Kill()
				}
			}
			for range tries {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				cmd := exec.Command(args[0], args[1:]...)
				cmd.Env = append(os.Environ(), mark)
				out := make(outputs, 1)
				cmd.Stdout = out
				if name == "slow" {
					time.AfterFunc(3*time.Second, cancel)
				} else {
					go func() { <-out; cancel() }()
				}
				err := Attempt(ctx, "test", nil, cmd.Run, nil)
				if stuck := new(StuckError); errors.As(err, &stuck) {
					eventually(t, func() bool {
						select {
						case <-stuck.Over:
							return true
						default:
							return false
						}
					})
				}
				eventually(t, func() bool { return len(marked(mark)) == 0 })
			}
		})
	}
}

// outputs says that something was written.
type outputs chan struct{}

func (o outputs) Write(p []byte) (int, error) {
	select {
	case o <- struct{}{}:
	default:
	}
	return len(p), nil
}

// marked returns the processes with this variable in their environment.
func marked(mark string) (pids []int) {
	for _, pid := range everyone() {
		if env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); bytes.Contains(env, []byte(mark+"\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}
