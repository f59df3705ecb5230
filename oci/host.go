package oci

import (
	"os"

	"github.com/crisp-cri/crisp/internal/userns"
)

// A Host is what we need of the kernel, besides files. Package oci has the real one; ocitest has
// one for tests without root. All methods are idempotent.
type Host interface {
	// Pin creates the namespaces of p and pins them by mounts below its directory.
	Pin(p Pins) error
	// Pinned reports whether everything in p is pinned.
	Pinned(p Pins) bool
	// Unpin removes everything that Pin mounted in p.Dir and at p.NetNS.
	Unpin(p Pins) error
	// Cgroup creates a sandbox's cgroup, or kills its processes and removes it. The path is in
	// the syntax of SandboxConfig.CgroupParent; for a removal it may be either driver's.
	Cgroup(path string, present bool) error
	// EmptyCgroup creates a cgroup called name in parent, in the hierarchies that have parent,
	// or removes it.
	EmptyCgroup(parent, name string, present bool) error
	// Find returns a pidfd of the process, if it is alive and is the one that started at
	// startTime (field 22 of /proc/<pid>/stat): the PID alone may have been reused.
	Find(pid int, startTime uint64) (*os.File, error)
	// Close removes what all sandboxes shared. Nothing may be pinned any more.
	Close() error
}

// Pins are the namespaces and mounts to pin for one sandbox:
//
//	<netns> <dir>/ns/uts <dir>/ns/ipc        new ones
//	<dir>/ns/user                            likewise, and owns the others
//	<dir>/ns/pid                             of the process Pid
//	<dir>/shm                                a tmpfs
type Pins struct {
	Dir           string
	NetNS         string // where the network namespace is pinned; "" = <dir>/ns/net
	Net, UTS, IPC bool
	IDs           *userns.Map       // of the user namespace; nil = the host's
	Hostname      string            // of the new UTS namespace
	Sysctls       map[string]string // of the new namespaces
	Pid           int               // if not 0, only its PID namespace is pinned
}
