package runtime

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An init that ends before it has opened the fifo, or before it has written to it, must not
// block a thread or its start forever.
func TestLetRun(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "exec.fifo")
	for _, c := range []struct {
		name, script string
		ok           bool
	}{
		{"killed before it opens", "exit 0", false},
		{"killed before it writes", `exec 3> "$0"; exit 0`, false},
		{"ready", `printf 0 > "$0"; exec sleep 1000`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := unix.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("sh", "-c", c.script, fifo)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { cmd.Process.Kill(); cmd.Wait() }()
			result := make(chan error, 1)
			go func() { result <- releaseInit(fifo, cmd.Process.Pid) }()
			select {
			case err := <-result:
				if (err == nil) != c.ok {
					t.Errorf("got %v", err)
				}
			case <-time.After(time.Minute):
				t.Fatal("the start waits for a process that has ended")
			}
			if _, err := os.Stat(fifo); (err != nil) != c.ok {
				t.Errorf("the fifo: %v", err)
			}
			os.Remove(fifo)
		})
	}
}
