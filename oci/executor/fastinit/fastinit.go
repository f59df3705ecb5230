// Package fastinit starts containers and execs with a first process written in C, where
// libcontainer's is a Go program. It saves the start of a Go runtime and a few hundred system
// calls (docs/performance.md has figures), and does only what most containers need: for the rest
// Container and Exec return ErrUnsupported, and libcontainer does it.
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
// A Plan is a list of steps with all their arguments. The child executes them in order, with one
// C function per step, and knows nothing of configurations. The error for a failed step uses the
// executor's description of it.
//
// # Mounts
//
// The child does not copy the host's mounts, some for each pod of the node, only to unmount them
// again: it joins a mount namespace with a single, empty file system (newTemplate), copies that,
// and brings along the trees that it cloned. So the time of a start does not depend on the
// number of pods.
//
// With a user namespace it clones, and maps the IDs of, the trees before it joins that, and then makes
// the other namespaces in it. The kernel lets it mount a procfs or sysfs there only where another is
// visible: so it comes from a second template, which has both, as all children do where the executor is in
// a user namespace, and makes all new mounts before it changes the root.
//
// # Descriptors
//
// The executor has some descriptors for each container, and Go's fork copies all of them.
// spawn.c forks so that only the child's are copied, which makes an exec independent of the
// number of pods, too.
//
// # Before libc
//
// On amd64 the child is the program's entry, and runs before libc is set up: for each start and exec that
// asks the CPU for its caches by some hundred CPUID instructions, which a virtual machine traps. So child.c
// calls nothing of libc (bare.h). Linked without the entry, it runs as a constructor.
//
// # Safety
//
// The child opens no file of the image except the program, which it executes as the container's user:
// it has more rights than the container, and any file may be a link into procfs. A terminal is a new
// one of a devpts, whoever mounted that. Until
// pivot_root(2) nothing of the container is accessed. After it, a path of the container is
// resolved below the new root, without magic links, into a descriptor, once, and a mount is
// attached to that descriptor (CVE-2019-16884, CVE-2021-30465, CVE-2025-31133). /proc and /sys
// are mounted on plain directories only (CVE-2019-19921), nothing else inside a procfs, and
// /dev/null is examined before it is opened, or masks anything. Each descriptor except stdio is
// close-on-exec from the first instruction on, and the working directory must be below the root
// (CVE-2024-21626). The child is not dumpable (CVE-2016-9962), and its program is the executor's
// sealed copy (CVE-2019-5736).
//
// # What differs from libcontainer
//
// A container cannot tell which init started it, but for what was left on purpose. Without
// process.capabilities it has none, where libcontainer keeps all of the executor's; crispd always
// sends them. A sysfs is read-only by its mount alone: the containers of a network namespace share
// what is below, and a privileged one may write it. A masked path below a file is taken for missing,
// where libcontainer fails. An exec starts at pids.max and above memory.max, because the fork is
// outside. A program that dies while it is executed counts as started, and its exit status tells.
// Like libcontainer, it ignores the umask of an exec, and enters a working directory before it drops
// its rights, so that the user need not be able to reach that.
//
// SELinux's labels have not been seen at work: no machine of ours had it. TestFastInitIsTheSame compares
// them where there is a policy with labels for containers, as in make test-vm's second boot.
package fastinit

// #cgo CFLAGS: -Wall -Wextra -Os -fno-stack-protector
// #cgo amd64 LDFLAGS: -Wl,-e,fastinitentry
import "C"

import "errors"

// ErrUnsupported is the error for what only libcontainer can do. It is no failure.
var ErrUnsupported = errors.New("not for the fast init")
