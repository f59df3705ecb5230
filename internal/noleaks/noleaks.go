// Package noleaks finds what a test has left in the kernel: mounts, cgroups, network
// links and rules, processes.
//
// A test takes a Snapshot first and compares at its end. Only what is new and has the
// test's marks counts, so that the rest of the machine, another crisp included, may go
// on meanwhile.
package noleaks

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A Snapshot is a set of lines, each the name of one object in the kernel.
type Snapshot map[string]bool

// Take lists the present objects.
//
// Processes are listed by the name of their executable, and only if programs names it; a
// process that somebody else is starting is no leak.
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
// for a while before it fails.
func (s Snapshot) Check(t testing.TB, mine func(line string) bool, programs ...string) {
	t.Helper()
	var left []string
	for range 60 {
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
		time.Sleep(50 * time.Millisecond)
	}
	slices.Sort(left)
	t.Errorf("left behind:\n  %s", strings.Join(left, "\n  "))
}

// mounts lists the mount points (proc_pid_mountinfo(5), field 5).
func mounts(s Snapshot) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	seen := map[string]int{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		seen[fields[4]]++ // mounts may be stacked on one point
		s[fmt.Sprintf("mount %s #%d", fields[4], seen[fields[4]])] = true
	}
	return nil
}

// cgroups lists the directories below /sys/fs/cgroup whose path names crisp.
func cgroups(s Snapshot) error {
	return filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone meanwhile
		}
		if d.IsDir() && strings.Contains(path, "crisp") {
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

// tables lists the nftables tables; without the nft program there are none of ours.
func tables(s Snapshot) error {
	nft, err := exec.LookPath("nft")
	if err != nil {
		return nil
	}
	out, err := exec.Command(nft, "list", "tables").Output()
	if err != nil {
		return fmt.Errorf("nft list tables: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		s["nft "+strings.TrimSpace(line)] = true
	}
	return nil
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
