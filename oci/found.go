package oci

import (
	"bufio"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// found returns the PID of an executor that runs in this instance's cgroup and listens at the
// socket, even if the socket and the lock file have been removed; 0 if there is none. It does
// not find an executor that could not move to its cgroup.
//
// The listening socket distinguishes it from processes that it has started in its cgroup, and
// the cgroup from a container's process that listens at the same path in its own mount
// namespace.
func (s *spawner) found(socket string) (pid int) {
	sockets := listening("/proc/self/net/unix", socket)
	if len(sockets) == 0 || s.cgroup == "" {
		return 0
	}
	dirs, _ := cgroupDirs(s.cgroup)
	scopes, _ := cgroupDirs("/system.slice" + s.cgroup + ".scope")
	for _, list := range []map[string]string{dirs, scopes} {
		for _, dir := range list {
			for _, pid := range cgroupProcs(dir) {
				if hasAny(pid, sockets) {
					return pid
				}
			}
		}
	}
	return 0
}

// listening returns the link targets of the descriptors of sockets that listen at path, from a
// table in the format of /proc/net/unix (proc_net(5)):
//
//	Num       RefCount Protocol Flags    Type St Inode Path
//	0000000000000000: 00000002 00000000 00010000 0001 01 21942 /run/crisp/executor.sock
func listening(table, path string) map[string]bool {
	const accepts = 1 << 16 // __SO_ACCEPTCON
	f, err := os.Open(table)
	if err != nil {
		return nil
	}
	defer f.Close()
	found := map[string]bool{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if !strings.HasSuffix(lines.Text(), " "+path) {
			continue
		}
		fields := strings.Fields(strings.TrimSuffix(lines.Text(), path))
		if len(fields) != 7 {
			continue
		}
		if flags, err := strconv.ParseUint(fields[3], 16, 32); err == nil && flags&accepts != 0 {
			found["socket:["+fields[6]+"]"] = true
		}
	}
	return found
}

// hasAny reports whether a process has a descriptor with one of these link targets.
func hasAny(pid int, links map[string]bool) bool {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return false // it has ended
	}
	files, err := p.FileDescriptorTargets()
	return err == nil && slices.ContainsFunc(files, func(file string) bool { return links[file] })
}
