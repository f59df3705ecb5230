package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	hostkernel "github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/thread"
)

// makeNamespaces creates the namespaces of p, sets them up and pins them.
//
// unshare(2) changes only the calling thread, which ends here: from then on only the pins keep
// the namespaces.
func makeNamespaces(p Pins) error {
	if p.IDs != nil {
		if err := dropOrphans(p); err != nil {
			return err
		}
	}
	var flags int
	var kinds []string
	for _, ns := range []struct {
		wanted bool
		flag   int
		kind   string
	}{
		{p.IDs != nil, unix.CLONE_NEWUSER, "user"},
		{p.Net, unix.CLONE_NEWNET, "net"},
		{p.UTS, unix.CLONE_NEWUTS, "uts"},
		{p.IPC, unix.CLONE_NEWIPC, "ipc"},
	} {
		if ns.wanted && !isNamespace(p.path(ns.kind)) {
			flags |= ns.flag
			kinds = append(kinds, ns.kind)
		}
	}
	if flags == 0 {
		return nil
	}
	if p.IDs != nil {
		return makeOwned(p, flags, kinds)
	}
	return thread.Run(func() error { return unshare(p, flags, kinds) })
}

// unshare does the work on the thread that is thrown away.
func unshare(p Pins, flags int, kinds []string) error {
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("make namespaces %s: %w", strings.Join(kinds, ", "), err)
	}
	if err := setHostname(p, kinds); err != nil {
		return err
	}
	for name, value := range p.Sysctls {
		if err := setSysctl(name, value); err != nil {
			return err
		}
	}
	return pinAll("/proc/thread-self/ns", kinds, p)
}

func pinAll(ns string, kinds []string, p Pins) error {
	var errs []error
	for _, kind := range kinds {
		errs = append(errs, pin(filepath.Join(ns, kind), p.path(kind)))
	}
	return errors.Join(errs...)
}

// setHostname sets the hostname of the calling thread's UTS namespace, if it is one of kinds.
func setHostname(p Pins, kinds []string) error {
	if !slices.Contains(kinds, "uts") || p.Hostname == "" {
		return nil
	}
	if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
		return fmt.Errorf("set hostname %q: %w", p.Hostname, err)
	}
	return nil
}

// setSysctl writes one parameter. Namespaced ones are the calling thread's.
func setSysctl(name, value string) error {
	err := hostkernel.SetSysctl(sysctlPath(name), value)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE):
		return fault.Invalid.Errorf("set sysctl %s to %q: %w", name, value, err)
	case err != nil:
		return fmt.Errorf("set sysctl %s to %q: %w", name, value, err)
	}
	return nil
}
