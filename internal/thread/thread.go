// Package thread runs work that changes its own thread for good: one that has
// entered other namespaces, or another user, must run no goroutine after that.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run calls f on a thread that ends with it, and waits. The changes that f makes to its
// thread with system calls (unshare(2), setns(2), setresuid(2)) are never seen by other
// goroutines.
//
// A goroutine that ends locked takes its thread with it. The main thread is an exception: the
// runtime parks it for good, in its changed state, which /proc/self would then show as ours. It
// is kept out of the way meanwhile.
func Run(f func() error) error {
	result := make(chan error, 1)
	go run(func() { result <- f() })
	return <-result
}

func run(f func()) {
	runtime.LockOSThread() // never unlocked, but on the main thread
	if unix.Gettid() != unix.Getpid() {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(f)
	}()
	<-done
	runtime.UnlockOSThread()
}
