package oci

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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

// dropOrphans removes what an interrupted Pin has left, unless its user namespace is pinned:
// without that one the others would not belong to the next owner.
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

// setUp sets hostname, sysctls and owners of the namespaces in the directory ns, from within them.
// It does not enter the user namespace: a thread cannot.
func setUp(p Pins, kinds []string, ns string) error {
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
	if slices.Contains(kinds, "ipc") {
		if err := ownQueues(*p.IDs); err != nil {
			return err
		}
	}
	refused := map[string]string{}
	for name, value := range p.Sysctls {
		if sysctlPath(name) == pingGroups {
			var err error
			if value, err = groupsOutside(value, p.IDs.GID); err != nil {
				return fmt.Errorf("sysctl %s: %w", name, err)
			}
		}
		err := setSysctl(name, value)
		if errors.Is(err, os.ErrPermission) {
			refused[name] = value
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
	for name, value := range refused {
		if err := setSysctl(name, value); err != nil {
			return err
		}
	}
	return nil
}

// pingGroups is the only sysctl of a namespace with IDs as its value. They are those of the user
// namespace of the writer, which here is the host's.
const pingGroups = "net/ipv4/ping_group_range"

// groupsOutside translates a range of groups, "LOWEST HIGHEST", to the host's. Groups beyond the
// last one inside do not exist there. The kernel refuses what is not a range.
func groupsOutside(value string, inside userns.Range) (string, error) {
	parts := strings.Fields(value)
	if len(parts) != 2 {
		return value, nil
	}
	var ends [2]uint32
	for i, part := range parts {
		id, err := strconv.ParseUint(part, 10, 32)
		if err != nil {
			return value, nil
		}
		ends[i] = uint32(id)
	}
	low, ok := inside.Translate(ends[0])
	if !ok {
		return "", fault.Invalid.Errorf("group %d is not among the %d of the user namespace", ends[0], inside.Length)
	}
	if low > math.MaxInt32 {
		return value, nil // the kernel takes no such group (GID_T_MAX), and none of these may ping
	}
	high, _ := inside.Translate(min(ends[1], inside.Length-1))
	return fmt.Sprint(low, " ", min(high, math.MaxInt32)), nil
}

// ownQueues gives the directory of the message queues of the calling thread's IPC namespace,
// /dev/mqueue, to the root of the user namespace. It belongs to whoever made the namespace.
func ownQueues(ids userns.Map) error {
	fs, err := unix.Fsopen("mqueue", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return nil // a kernel without message queues, or a seccomp filter around us: nothing needs this
	}
	if err != nil {
		return os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return os.NewSyscallError("fsconfig", err)
	}
	dir, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("fsmount", err)
	}
	defer unix.Close(dir)
	if err := unix.Fchownat(dir, "", int(ids.UID.Host), int(ids.GID.Host), unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("change owner of message queues: %w", err)
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
