package oci

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/thread"
	"github.com/crisp-cri/crisp/internal/userns"
)

// checkIDs refuses a user namespace that could not be created, or in which the usual mounts of
// containers would fail: proc(5) and mqueue belong to the PID and the IPC namespace, which must
// belong to the user namespace.
func checkIDs(cfg SandboxConfig) error {
	if cfg.IDs == nil {
		return nil
	}
	for kind, r := range map[string]userns.Range{"user": cfg.IDs.UID, "group": cfg.IDs.GID} {
		// The last ID of all means "none" to many system calls.
		if r.Length == 0 || uint64(r.Host)+uint64(r.Length) > math.MaxUint32 {
			return fault.Invalid.Errorf("user namespace: %d %s IDs from %d are not a valid range", r.Length, kind, r.Host)
		}
	}
	switch {
	case cfg.HostPID:
		return fault.Invalid.Errorf("a sandbox with a user namespace cannot have the host's PID namespace")
	case cfg.HostIPC:
		return fault.Invalid.Errorf("a sandbox with a user namespace cannot have the host's IPC namespace")
	}
	return nil
}

// makeOwned creates a user namespace and others that belong to it: setting them up needs the
// capabilities of its root.
func makeOwned(p Pins, flags int, kinds []string) error {
	err := userns.Make(*p.IDs, uintptr(flags)&^unix.CLONE_NEWUSER, func(ns string) error {
		if err := thread.Run(func() error { return setUp(p, kinds, ns) }); err != nil {
			return err
		}
		// The user namespace is pinned last: it stands for all.
		return pinAll(ns, append(slices.Clone(kinds[1:]), kinds[0]), p)
	})
	if err != nil {
		return fmt.Errorf("make namespaces %s: %w", strings.Join(kinds, ", "), err)
	}
	return nil
}

// dropOrphans removes the namespaces of an interrupted Pin whose owner is not pinned any more:
// they would not belong to the next owner.
func dropOrphans(p Pins) error {
	if isNamespace(p.path("user")) {
		return nil
	}
	var errs []error
	for _, kind := range []string{"net", "uts", "ipc"} {
		errs = append(errs, unmount(p.path(kind)))
	}
	return errors.Join(errs...)
}

// setUp sets hostname and sysctls of the namespaces in the directory ns, from within them. It
// does not enter the user namespace: a thread cannot.
func setUp(p Pins, kinds []string, ns string) error {
	if p.Hostname == "" && len(p.Sysctls) == 0 {
		return nil
	}
	for _, kind := range kinds {
		if kind == "user" {
			continue
		}
		if err := enter(filepath.Join(ns, kind)); err != nil {
			return err
		}
	}
	if err := setHostname(p, kinds); err != nil {
		return err
	}
	var refused []string
	for name, value := range p.Sysctls {
		err := setSysctl(name, value)
		if errors.Is(err, os.ErrPermission) {
			refused = append(refused, name)
			continue
		}
		if err != nil {
			return err
		}
	}
	if len(refused) == 0 {
		return nil
	}
	// Those of an IPC namespace belong to the root of its user namespace, and capabilities do
	// not help (Linux 5.19). Only this thread changes its IDs.
	for _, call := range []struct{ nr, id uintptr }{
		{unix.SYS_SETRESGID, uintptr(p.IDs.GID.Host)}, {unix.SYS_SETRESUID, uintptr(p.IDs.UID.Host)},
	} {
		if _, _, errno := unix.RawSyscall(call.nr, ^uintptr(0), call.id, ^uintptr(0)); errno != 0 {
			return fmt.Errorf("become root of the user namespace: %w", errno)
		}
	}
	for _, name := range refused {
		if err := setSysctl(name, p.Sysctls[name]); err != nil {
			return err
		}
	}
	return nil
}

// enter makes the calling thread join a namespace.
func enter(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("enter namespace: %w", err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), 0); err != nil {
		return fmt.Errorf("enter namespace %s: %w", path, err)
	}
	return nil
}
