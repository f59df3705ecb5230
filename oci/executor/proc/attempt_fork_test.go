package proc

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An attempt that is given up while it forks must not stop the program: until the child executes,
// the thread that forked it cannot be stopped for a garbage collection, and whoever would kill the
// child waits for that. The test runs itself in a process of its own, as all of that would hang.
func TestGivenUpWhileItForks(t *testing.T) {
	const inside = "CRISP_TEST_FORKS"
	if os.Getenv(inside) == "" {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestGivenUpWhileItForks$", "-test.count", "1")
		cmd.Env = append(os.Environ(), inside+"=yes")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		late := time.AfterFunc(time.Minute, func() { unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
		defer late.Stop()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	go func() { // stops all goroutines, as a garbage collection does
		for t.Context().Err() == nil {
			runtime.ReadMemStats(new(runtime.MemStats))
			time.Sleep(300 * time.Microsecond)
		}
	}()
	var all sync.WaitGroup // so many that a child often waits for a processor before it executes
	for range 8 {
		all.Go(func() {
			for i := range 200 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%20)*100*time.Microsecond)
				err := Attempt(ctx, "test", nil, func() error {
					for ctx.Err() == nil {
						_ = exec.Command("true").Run() // may be killed
					}
					return nil
				}, nil)
				cancel()
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// Forks can be paused only when none is under way.
func TestPauseForks(t *testing.T) {
	syscall.ForkLock.Lock() // as in a fork
	release, ok := pauseForks()
	syscall.ForkLock.Unlock()
	if ok {
		release()
		t.Error("forks were paused during one")
	}
	if release, ok = pauseForks(); !ok {
		t.Fatal("forks cannot be paused without any")
	}
	if syscall.ForkLock.TryLock() {
		t.Error("a fork can begin meanwhile")
	}
	release()
}

// Without kcmp(2), an attempt ends its children when no fork is under way any more.
func TestGivenUpWithoutCompare(t *testing.T) {
	was := canCompare
	canCompare = func() bool { return false }
	defer func() { canCompare = was }()
	ctx, cancel := context.WithCancel(t.Context())
	err := Attempt(ctx, "test", nil, func() error {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			return err
		}
		syscall.ForkLock.Lock()
		cancel()
		time.Sleep(2 * forkPatience)
		syscall.ForkLock.Unlock()
		return cmd.Wait()
	}, nil)
	if err == nil || errors.As(err, new(*StuckError)) {
		t.Errorf("the attempt ended with %v", err)
	}
}

// A program that was executed has a memory of its own.
func TestSharesMemory(t *testing.T) {
	if !canCompare() {
		t.Fatal("kcmp fails for our own process")
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if sharesMemory(cmd.Process.Pid) {
		t.Error("another program has our memory")
	}
}
