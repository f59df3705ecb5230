// Package noleaks finds what a test has left in the kernel: mounts, cgroups, network
// links and rules, processes.
//
// A test takes a Snapshot first and compares at its end. Only what is new and has the
// test's marks counts, so that the rest of the machine, another crisp included, may go
// on meanwhile.
package noleaks

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
)

// A Snapshot is a set of lines, each the name of one object in the kernel.
type Snapshot map[string]bool

// Take lists the present objects.
//
// Processes are listed by the name of their executable, and only if programs names it; a
// process that another program is starting is no leak.
func Take(programs ...string) (Snapshot, error) {
	s := Snapshot{}
	for _, take := range []func(Snapshot) error{mounts, cgroups, links, tables} {
		if err := take(s); err != nil {
			return nil, err
		}
	}
	processes(s, programs)
	return s, nil
}

// Check fails t for each object that exists now, was not in the snapshot, and is the
// test's: mine accepts its line.
//
// Some objects vanish a moment after the call that ended them returned: a killed process
// until it is reaped, a veth until the kernel destroys its namespace. So Check retries
// for a minute before it fails: a busy machine takes seconds.
func (s Snapshot) Check(t testing.TB, mine func(line string) bool, programs ...string) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		now, err := Take(programs...)
		if err != nil {
			t.Errorf("look for leaks: %v", err)
			return
		}
		left = left[:0]
		for line := range now {
			if !s[line] && mine(line) {
				left = append(left, line)
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			break
		}
	}
	slices.Sort(left)
	t.Errorf("left behind:\n  %s", strings.Join(left, "\n  "))
}

// mounts lists the mount points (proc_pid_mountinfo(5), field 5).
func mounts(s Snapshot) error {
	all, err := mountinfo.GetMounts(nil)
	seen := map[string]int{}
	for _, m := range all {
		seen[m.Mountpoint]++ // mounts may be stacked on one point
		s[fmt.Sprintf("mount %s #%d", m.Mountpoint, seen[m.Mountpoint])] = true
	}
	return err
}

// cgroups lists the directories below /sys/fs/cgroup whose path names crisp.
func cgroups(s Snapshot) error { return cgroupsNamed(s, "crisp") }

// cgroupsNamed lists those whose path has part in it.
func cgroupsNamed(s Snapshot, part string) error {
	return filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone meanwhile
		}
		if d.IsDir() && strings.Contains(path, part) {
			s["cgroup "+path] = true
		}
		return nil
	})
}

// links lists the network interfaces of the test's own network namespace.
func links(s Snapshot) error {
	names, err := os.ReadDir("/sys/class/net")
	if err != nil {
		return err
	}
	for _, n := range names {
		s["link "+n.Name()] = true
	}
	return nil
}

// tables lists the nftables tables.
func tables(s Snapshot) error {
	text, err := nft("list", "tables")
	for line := range strings.Lines(text) {
		s["nft "+strings.TrimSpace(line)] = true
	}
	return err
}

// nft returns what nft(8) prints, "" without the program: then crisp has no tables.
func nft(args ...string) (string, error) {
	if _, err := exec.LookPath("nft"); err != nil {
		return "", nil
	}
	out, err := exec.Command("nft", args...).Output()
	if err != nil {
		return "", fmt.Errorf("nft %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

func processes(s Snapshot, programs []string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(cmdline) == 0 {
			continue // gone, or a kernel thread or zombie
		}
		// Not /proc/PID/exe: a sealed executable is a memfd there.
		arg0, _, _ := strings.Cut(string(cmdline), "\x00")
		if slices.Contains(programs, filepath.Base(arg0)) {
			s[fmt.Sprintf("process %s %s", filepath.Base(dir), strings.ReplaceAll(string(cmdline), "\x00", " "))] = true
		}
	}
}
