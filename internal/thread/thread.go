// Package thread runs work that changes its own thread for good: one that has
// entered other namespaces, or another user, must run no goroutine after that.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Spend calls f on a thread that ends with it, and waits. What f changes of its
// thread with system calls (unshare(2), setns(2), setresuid(2)) nobody else
// ever sees.
//
// A goroutine that ends locked takes its thread with it. The main thread does
// not end so: the runtime parks it for good, as it is, and it would be what
// /proc/self shows of us. It is kept out of the way meanwhile.
func Spend(f func() error) error {
	result := make(chan error, 1)
	go spend(func() { result <- f() })
	return <-result
}

func spend(f func()) {
	runtime.LockOSThread() // never unlocked, but on the main thread
	if unix.Gettid() != unix.Getpid() {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		spend(f)
	}()
	<-done
	runtime.UnlockOSThread()
}
