// Package userns creates user namespaces.
//
// No thread of a multithreaded program can enter a new user namespace (unshare(2): EINVAL), so
// each is created with a process. That process never runs: it is traced, and stops before the
// first instruction of the program it executes. The caller pins or opens the namespaces
// meanwhile.
package userns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// A Map maps the IDs inside a user namespace to those outside: one range of each kind, which
// begins at 0 inside.
type Map struct{ UID, GID Range }

// A Range is Length IDs beginning with Host.
type Range struct{ Host, Length uint32 }

// Translate returns the ID outside for id, and false if it is not mapped.
func (r Range) Translate(id uint32) (uint32, bool) { return r.Host + id, id < r.Length }

// Mappings returns the range as a specification has it (runtime-spec config-linux.md, User namespace mappings).
func (r Range) Mappings() []specs.LinuxIDMapping {
	return []specs.LinuxIDMapping{{HostID: r.Host, Size: r.Length}}
}

// Make creates a user namespace with the mappings m, and with it the others that flags name
// (unix.CLONE_NEW…), which belong to it. It calls use with the directory of their links,
// /proc/<pid>/ns; namespaces that use does not keep are gone when Make returns.
func Make(m Map, flags uintptr, use func(ns string) error) (err error) {
	runtime.LockOSThread() // tracer and Pdeathsig belong to the thread
	defer runtime.UnlockOSThread()

	pid, err := syscall.ForkExec("/proc/self/exe", []string{"crisp-userns"}, &syscall.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags:                 syscall.CLONE_NEWUSER | flags,
			UidMappings:                m.UID.ids(),
			GidMappings:                m.GID.ids(),
			GidMappingsEnableSetgroups: true,
			Ptrace:                     true,
			Pdeathsig:                  syscall.SIGKILL,
		},
	})
	if err != nil {
		return fmt.Errorf("make user namespace: %w", err)
	}
	defer func() { err = errors.Join(err, end(pid)) }()
	return use(fmt.Sprintf("/proc/%d/ns", pid))
}

// Open creates a user namespace with the mappings m that lives as long as the file is open.
func Open(m Map) (f *os.File, err error) {
	err = Make(m, 0, func(ns string) error {
		f, err = os.Open(ns + "/user")
		return err
	})
	return f, err
}

func (r Range) ids() []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(r.Host), Size: int(r.Length)}}
}

// end kills a child of this process and reaps it. The child's stop is reported first (ptrace(2)).
func end(pid int) error {
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return os.NewSyscallError("kill", err)
	}
	for {
		var ws unix.WaitStatus
		switch _, err := unix.Wait4(pid, &ws, 0, nil); {
		case err == unix.EINTR:
		case err != nil:
			return os.NewSyscallError("wait4", err)
		case ws.Exited() || ws.Signaled():
			return nil
		}
	}
}
