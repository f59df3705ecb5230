package thread_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/thread"
)

// init locks the goroutine of TestMain to the main thread.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	var main int
	err := thread.Run(func() error { main = unix.Gettid(); return nil })
	runtime.UnlockOSThread()
	if err != nil || main == unix.Getpid() {
		fmt.Fprintf(os.Stderr, "work from the main thread ran on thread %d of process %d (%v)\n", main, unix.Getpid(), err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// No other goroutine sees what f does to its thread: it is not the main thread, and it has ended,
// or is never used again.
func TestRun(t *testing.T) {
	failed := errors.New("failed")
	var mu sync.Mutex
	var all sync.WaitGroup
	spoilt := map[int]bool{} // threads
	for range 50 {
		all.Go(func() {
			err := thread.Run(func() error {
				if unix.Gettid() == unix.Getpid() {
					t.Error("it ran on the main thread")
				}
				mu.Lock()
				defer mu.Unlock()
				spoilt[unix.Gettid()] = true
				// The working directory is the thread's own from here on, as namespaces would be.
				if err := unix.Unshare(unix.CLONE_FS); err != nil {
					t.Error(err)
				}
				if err := unix.Chdir("/proc"); err != nil {
					t.Error(err)
				}
				return failed
			})
			if err != failed {
				t.Errorf("got %v, want the work's own error", err)
			}
		})
	}
	all.Wait()
	for end := time.Now().Add(30 * time.Second); leftThreads(t) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d threads are left, for other goroutines", leftThreads(t))
		}
	}
	if len(spoilt) == 0 {
		t.Error("nothing ran")
	}
}

// leftThreads counts the threads that have TestRun's working directory.
func leftThreads(t *testing.T) (n int) {
	t.Helper()
	threads, err := filepath.Glob("/proc/self/task/*/cwd")
	if err != nil || len(threads) == 0 {
		t.Fatalf("no threads: %v", err)
	}
	for _, cwd := range threads {
		if dir, err := os.Readlink(cwd); err == nil && dir == "/proc" { // else it has ended
			n++
		}
	}
	return n
}
