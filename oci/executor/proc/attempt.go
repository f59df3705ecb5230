package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/procstat"
)

// libcontainer waits for its children without a time limit: for a mount that does not respond,
// for a hook, for a process that was stopped in the container. So any call that may wait like this
// is an attempt: its processes are killed when its context ends. All of them can be found, although
// libcontainer names none before it has finished: they are the children of the thread it was called
// on, and the members of the cgroup they were put into.

// A StuckError is an attempt that did not end although all its processes were killed: a process
// is in uninterruptible sleep, or a service does not respond.
type StuckError struct {
	err  error
	Over <-chan struct{} // closed when it ends after all
}

func (e *StuckError) Error() string { return e.err.Error() + "; it cannot be killed" }
func (e *StuckError) Unwrap() error { return e.err }

// WhenOver calls f when the attempt has ended after all, and does not wait for that.
func (e *StuckError) WhenOver(f func()) {
	go func() {
		<-e.Over
		f()
	}()
}

// Attempt calls f, which starts processes, and kills them when ctx ends: its children, their
// descendants, and everything in the cgroup group (nil = none). It then returns why ctx ended,
// or a StuckError if f still runs. What f starts afterwards is killed too. If f succeeds although
// ctx has ended, late, if not nil, ends and reaps what it started, as no caller would wait for it.
// what names f in errors.
func Attempt(ctx context.Context, what string, group map[string]string, f, late func() error) error {
	if err := ctx.Err(); err != nil {
		return GivenUp(ctx, what)
	}
	var ours string  // file with the children of f's thread
	var before []int // its children before f
	begun, over := make(chan struct{}), make(chan struct{})
	var err error     // set before over is closed
	var mu sync.Mutex // guards the rest
	free := false     // the thread, and so its children, may belong to another attempt by now
	done := false     // f has returned, and whether its success stands is decided
	go func() {
		runtime.LockOSThread()
		defer func() {
			mu.Lock()
			free = true
			mu.Unlock()
			runtime.UnlockOSThread()
		}()
		defer close(over)
		ours = fmt.Sprintf("/proc/self/task/%d/children", unix.Gettid())
		before = procstat.PIDs(ours)
		close(begun)
		err = fault.Protect(f)
		mu.Lock()
		done = true
		unwanted := err == nil && ctx.Err() != nil
		mu.Unlock()
		if unwanted && late != nil {
			err = errors.Join(GivenUp(ctx, what), fault.Protect(late))
		}
		if err != nil {
			reapChildren(ours, before)
		}
	}()
	select {
	case <-over:
		return err
	case <-ctx.Done():
	}
	<-begun
	soon := time.Now().Add(Patience)
	end := func() {
		mu.Lock()
		if !free {
			endChildren(ours, before, time.Now().Before(soon))
		}
		mu.Unlock()
		if group != nil {
			_ = SignalAll(group, unix.SIGKILL) // it may not exist yet
		}
	}
	patience := time.After(Patience)
	for pause := backoff.New(time.Millisecond, 50*time.Millisecond); ; {
		end()
		select {
		case <-over:
			if err == nil {
				return nil // it finished first
			}
			return GivenUp(ctx, what)
		case <-patience:
			mu.Lock()
			stuck := !done
			mu.Unlock()
			if stuck {
				go endLate(end, over)
				return &StuckError{GivenUp(ctx, what), over}
			}
		case <-time.After(pause.Next()):
		}
	}
}

// endLate calls end until a stuck attempt is over: it may start a process yet.
func endLate(end func(), over <-chan struct{}) {
	for pause := backoff.New(50*time.Millisecond, time.Second); ; end() {
		select {
		case <-over:
			return
		case <-time.After(pause.Next()):
		}
	}
}

// GivenUp returns why ctx ended; its kind is that of the cause. It is not fault.Unavailable, as an
// immediate retry would not help.
func GivenUp(ctx context.Context, what string) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return fault.Internal.Errorf("%s took too long", what)
	}
	return fault.KindOf(cause).Errorf("%s was given up: %w", what, cause)
}

// endChildren kills the processes in a list of children, and all their descendants, except those that the
// thread had before. What patient means, settle says.
//
// A child must not be stopped between its fork and its execve. It shares our memory (CLONE_VFORK),
// and the thread that forked it, which the kernel keeps waiting, cannot be stopped for a garbage
// collection. A collection that began then would wait for the child, and whoever is to end that
// waits for the collection. It has no children yet, so it is just killed.
func endChildren(list string, spared []int, patient bool) {
	known := canCompare()
	if !known {
		release, ok := pauseForks()
		if !ok {
			return // until the next try
		}
		defer release()
	}
	forked := func() ([]int, error) {
		return slices.DeleteFunc(childrenIn(list, spared), func(pid int) bool { return !sharesMemory(pid) }), nil
	}
	found, whole := make(tree), tree{}
	deadline := time.Now().Add(stopPatience)
	for more := true; more && time.Now().Before(deadline); {
		before := len(found)
		if known {
			_ = signalEach(forked, unix.SIGKILL) // may have ended
		}
		for _, pid := range childrenIn(list, spared) {
			if !known || !sharesMemory(pid) {
				found.add(pid, func() bool { return slices.Contains(procstat.PIDs(list), pid) })
			}
		}
		whole = found.settle(patient)
		more = len(found) > before
	}
	found.kill(whole)
}

// childrenIn returns the processes in a list of children, without those that the thread had before.
func childrenIn(list string, spared []int) []int {
	return slices.DeleteFunc(procstat.PIDs(list), func(pid int) bool { return slices.Contains(spared, pid) })
}

// kcmpVM is KCMP_VM of kcmp(2), which package unix does not have.
const kcmpVM = 1

// sharesMemory reports whether a process has our memory: it is one that we fork.
func sharesMemory(pid int) bool {
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(pid), kcmpVM, 0, 0, 0)
	return errno == 0 && order == 0
}

// canCompare reports whether sharesMemory can tell: the kernel may lack kcmp (CONFIG_KCMP), or a
// filter forbid it.
var canCompare = sync.OnceValue(func() bool { return sharesMemory(os.Getpid()) })

// forkPatience bounds how long pauseForks waits.
const forkPatience = 100 * time.Millisecond

// pauseForks keeps Go from forking until release is called; what cgo forks keeps no collection
// from beginning. ok is false if there was always a fork under way, or waiting.
func pauseForks() (release func(), ok bool) {
	deadline := time.Now().Add(forkPatience)
	// Not RLock: while that waits, no other fork may begin.
	for pause := backoff.New(100*time.Microsecond, time.Millisecond); !syscall.ForkLock.TryRLock(); {
		if time.Now().After(deadline) {
			return nil, false
		}
		time.Sleep(pause.Next())
	}
	return syscall.ForkLock.RUnlock, true
}

// reapChildren kills and reaps the processes in a list of children that are not waited for:
// libcontainer does not wait for bootstrap processes that it has not heard of. It leaves one that
// takes longer to the reaper.
func reapChildren(list string, spared []int) {
	for deadline := time.Now().Add(Patience); ; time.Sleep(time.Millisecond) {
		left := childrenIn(list, spared)
		if len(left) == 0 || time.Now().After(deadline) {
			return
		}
		endChildren(list, spared, time.Until(deadline) > Patience/2)
		for _, pid := range left {
			unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// maxTree bounds how many processes are killed at once; what kills them is called again.
const maxTree = 4096
