// Package thread runs work that changes its own thread for good: a thread that has entered other
// namespaces, or changed its user, must run no goroutine afterwards.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run calls f on a thread that ends with it, and waits. Other goroutines never see the changes
// that f makes to its thread with system calls (unshare(2), setns(2), setresuid(2)).
//
// A goroutine that ends while locked takes its thread with it. The main thread is an exception:
// the runtime parks it for good, in its changed state, which /proc/self would then show as ours.
// Run keeps the main thread occupied meanwhile.
func Run(f func() error) error {
	result := make(chan error, 1)
	go run(func() { result <- f() })
	return <-result
}

func run(f func()) {
	runtime.LockOSThread() // never unlocked, except on the main thread
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
