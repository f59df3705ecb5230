package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// makeNamespaces makes the namespaces of p, sets them up and pins them in dir.
//
// unshare(2) changes the calling thread only. The thread is never given back to
// the Go runtime: a goroutine that ends locked takes its thread with it, and the
// namespaces then live by their pins alone.
func makeNamespaces(p Pins, dir string) error {
	var flags int
	var kinds []string
	for _, ns := range []struct {
		wanted bool
		flag   int
		kind   string
	}{
		{p.Net, unix.CLONE_NEWNET, "net"},
		{p.UTS, unix.CLONE_NEWUTS, "uts"},
		{p.IPC, unix.CLONE_NEWIPC, "ipc"},
	} {
		if ns.wanted && !isNamespace(filepath.Join(dir, ns.kind)) {
			flags |= ns.flag
			kinds = append(kinds, ns.kind)
		}
	}
	if flags == 0 {
		return nil
	}
	result := make(chan error, 1)
	go onThrowawayThread(func() { result <- unshare(p, flags, kinds, dir) })
	return <-result
}

// onThrowawayThread calls f on a thread that ends with the goroutine. The main
// thread does not: the runtime parks it for good, with the namespaces on, and
// they would be what /proc/self shows of us. It is kept out of the way meanwhile.
func onThrowawayThread(f func()) {
	runtime.LockOSThread() // never unlocked, but on the main thread
	if unix.Gettid() != unix.Getpid() {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		onThrowawayThread(f)
	}()
	<-done
	runtime.UnlockOSThread()
}

// unshare does the work on the thread that is thrown away.
func unshare(p Pins, flags int, kinds []string, dir string) error {
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("make namespaces %s: %w", strings.Join(kinds, ", "), err)
	}
	if slices.Contains(kinds, "uts") && p.Hostname != "" {
		if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
			return fmt.Errorf("set hostname %q: %w", p.Hostname, err)
		}
	}
	for name, value := range p.Sysctls {
		if err := setSysctl(name, value); err != nil {
			return err
		}
	}
	var errs []error
	for _, kind := range kinds {
		errs = append(errs, pin("/proc/thread-self/ns/"+kind, filepath.Join(dir, kind)))
	}
	return errors.Join(errs...)
}

// setSysctl writes one parameter. Those of namespaces are the calling thread's.
func setSysctl(name, value string) error {
	f, err := os.OpenFile(filepath.Join("/proc/sys", sysctlPath(name)), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(value)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("set sysctl %s to %q: %w", name, value, err)
	}
	return nil
}
