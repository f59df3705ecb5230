package main

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// move puts this process into the cgroup of that name, in every hierarchy.
func move(name string) error {
	dirs, err := hierarchies()
	for _, root := range dirs {
		dir := filepath.Join(root, name)
		if e := os.MkdirAll(dir, 0o755); e != nil {
			err = errors.Join(err, e)
			continue
		}
		e := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
		if errors.Is(e, unix.ENOSPC) { // a v1 cpuset without CPUs can hold nobody; nothing is gained by one
			e = os.Remove(dir)
		}
		err = errors.Join(err, e)
	}
	return err
}

// leave undoes move, as far as others do not live there too.
func leave(name string) {
	dirs, _ := hierarchies()
	for _, root := range dirs {
		os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte("0"), 0)
		for dir := filepath.Clean("/" + name); dir != "/" && os.Remove(filepath.Join(root, dir)) == nil; {
			dir = filepath.Dir(dir)
		}
	}
}

// hierarchies returns where the cgroup hierarchies are mounted
// (proc_pid_mountinfo(5)).
func hierarchies() ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var dirs []string
	seen := make(map[string]bool) // by device: a hierarchy may be mounted twice
	for lines := bufio.NewScanner(f); lines.Scan(); {
		left, right, _ := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(left)
		kind, _, _ := strings.Cut(right, " ")
		if len(fields) < 5 || kind != "cgroup" && kind != "cgroup2" || fields[3] != "/" || seen[fields[2]] {
			continue
		}
		seen[fields[2]] = true
		dirs = append(dirs, fields[4])
	}
	return dirs, nil
}
