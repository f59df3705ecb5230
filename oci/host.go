package oci

import (
	"os"

	"github.com/crisp-cri/crisp/internal/userns"
)

// A Host is what we need of the kernel, besides files. Package oci has the real one; the other
// is in ocitest, for tests that are not root. All methods may be repeated.
type Host interface {
	// Pin makes the namespaces of p and mounts them below its directory.
	Pin(p Pins) error
	// Pinned reports whether all of p is in place.
	Pinned(p Pins) bool
	// Unpin takes away all that Pin mounted in p.Dir and at p.NetNS.
	Unpin(p Pins) error
	// Cgroup makes a sandbox's cgroup, or kills what is in it and removes it.
	// The path is as SandboxConfig.CgroupParent's; what is removed may be of
	// either driver.
	Cgroup(path string, present bool) error
	// EmptyCgroup makes a cgroup of that name in parent, where parent exists, or removes
	// it.
	EmptyCgroup(parent, name string, present bool) error
	// Find returns a pidfd of the process, if it is alive and is the one that
	// started at startTime (field 22 of /proc/<pid>/stat): a pid alone may be
	// anybody's by now.
	Find(pid int, startTime uint64) (*os.File, error)
	// Close takes away what all sandboxes shared. Nothing may be pinned any more.
	Close() error
}

// Pins are the namespaces and mounts to be pinned for one sandbox:
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
