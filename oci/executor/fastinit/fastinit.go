// Package fastinit starts containers and execs with a first process that is written in
// C, where libcontainer's is a Go program. It is quicker by the start of a Go runtime and
// by a few hundred system calls (docs/performance.md has figures), and does only what most
// containers need: for the rest Container and Exec return ErrUnsupported, and libcontainer
// does it.
//
// The executor and the child divide the work like this:
//
//	executor                            child (child.c)
//	Container: configs.Config → Plan
//	Start: fork, execve of ourselves ─▶ clones the trees of the host that it will mount
//	cgroups, limits, state              joins namespaces, leaves the host's mounts
//	                                    mounts, pivot_root, masks
//	Proceed ──────────────────────────▶ was waiting: user, capabilities, seccomp
//	Executed ◀──────────────────────────execve of the program
//
// A Plan is a list of steps with all they need. The child executes them in order, with
// one C function a step, and knows nothing of configurations. A step that fails is named in
// the error by what the executor said of it.
//
// # Mounts
//
// The child does not copy the host's mounts, of which a node has some for each pod, in
// order to unmount them again: it joins a mount namespace with a single, empty file system
// (template.go), copies that, and brings along the trees that it cloned. So the time of a
// start does not depend on how many pods there are.
//
// # Descriptors
//
// The executor has some descriptors for each container, and a fork of Go's copies all of them.
// spawn.c forks so that only those of the child are copied, which makes an exec independent of
// the number of pods, too.
//
// # Safety
//
// Until pivot_root(2) nothing of the container is looked at. After it, a path of the
// container is resolved below the new root, without magic links, into a descriptor, once,
// and a mount is attached to that descriptor (CVE-2019-16884, CVE-2021-30465,
// CVE-2025-31133). /proc and /sys are mounted on plain directories only (CVE-2019-19921),
// nothing else inside of a procfs, and /dev/null is looked at before it masks anything. Each
// descriptor but stdio is close-on-exec from the first instruction on, and the working
// directory must lie below the root (CVE-2024-21626). The child is not dumpable (CVE-2016-9962),
// and its program is the executor's sealed copy (CVE-2019-5736).
package fastinit

// #cgo CFLAGS: -Wall -Wextra -Os
// #include "child.h"
import "C"

import "errors"

// The arguments of a child, and what it calls itself until it executes its program.
const (
	Arg1 = C.FASTINIT_ARG1
	Arg2 = C.FASTINIT_ARG2
	Name = C.FASTINIT_NAME
)

// ErrUnsupported is the error of what only libcontainer can do. It is no failure.
var ErrUnsupported = errors.New("not for the fast init")
