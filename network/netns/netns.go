// Package netns runs functions inside network namespaces without leaving a thread there.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Enter calls f on a thread in the network namespace at path, or on the current one for "". The
// error is fault.NotFound if path does not exist. f must not start goroutines that depend on the
// namespace; what f opens there (sockets) stays there.
//
// setns(2) affects one thread. A thread that cannot be moved back must never run anything else:
// its goroutine then ends locked to it, which ends the thread.
func Enter(path string, f func() error) error {
	if path == "" {
		return f()
	}
	target, err := netns.GetFromPath(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fault.NotFound.Errorf("network namespace %s: %w", path, err)
	}
	if err != nil {
		return fmt.Errorf("network namespace %s: %w", path, err)
	}
	defer target.Close()

	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		host, err := netns.Get()
		if err != nil {
			runtime.UnlockOSThread() // it has not moved
			result <- fmt.Errorf("network namespace of this thread: %w", err)
			return
		}
		defer host.Close()
		if err := netns.Set(target); err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("enter network namespace %s: %w", path, err)
			return
		}
		err = f()
		if netns.Set(host) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

// Pinned reports whether a namespace is bound to path (statfs(2): NSFS_MAGIC since
// Linux 3.19). After a reboot, the path may be a plain file.
func Pinned(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}
