package network

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/crisp-cri/crisp/internal/fault"
)

// enter calls f on a thread that is in the network namespace at path, or as it
// is for "". f must not start goroutines that depend on the namespace. What f
// opens there (sockets) stays there.
//
// setns(2) is for one thread, and a thread that cannot be brought back must never
// run anything else: its goroutine then ends locked to it, and with that the
// thread.
func enter(path string, f func() error) error {
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
			result <- fmt.Errorf("network namespace of this thread: %w", err)
			runtime.UnlockOSThread() // it has not moved
			return
		}
		defer host.Close()
		if err := netns.Set(target); err != nil {
			result <- fmt.Errorf("enter network namespace %s: %w", path, err)
			runtime.UnlockOSThread()
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

// loopbackUp does the work of the loopback plugin without a process; the kernel
// gives the device its addresses.
func loopbackUp(path string) error {
	return enter(path, func() error {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			return fmt.Errorf("bring up the loopback device: %w", err)
		}
		return nil
	})
}
