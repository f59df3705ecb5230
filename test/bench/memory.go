package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// memory is what a set of processes uses, in MiB. Pages that only one process maps are private; PSS splits the others among those
// that map them.
type memory struct {
	pss, private float64
	processes    int
}

// readMemory adds up the processes of a runtime. A process that ends meanwhile is left out.
func readMemory(e *endpoint) (memory, error) {
	var sum memory
	procs, err := readProcesses("/proc")
	if err != nil {
		return sum, err
	}
	pids, err := e.processes()
	if err != nil {
		return sum, err
	}
	for _, pid := range runtimeProcesses(procs, pids, e.exes) {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if gone(err) {
			continue
		}
		if err != nil {
			return sum, err
		}
		m, err := parseRollup(data)
		if err != nil {
			return sum, fmt.Errorf("process %d: %w", pid, err)
		}
		sum.pss += m.pss
		sum.private += m.private
		sum.processes++
	}
	return sum, nil
}

func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// parseRollup reads smaps_rollup, proc_pid_smaps(5).
func parseRollup(data []byte) (memory, error) {
	m := memory{processes: 1}
	seen := 0
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) != 3 || f[2] != "kB" {
			continue
		}
		kib, err := strconv.ParseFloat(f[1], 64)
		if err != nil {
			return m, err
		}
		switch f[0] {
		case "Pss:":
			m.pss = kib / 1024
			seen++
		case "Private_Clean:", "Private_Dirty:":
			m.private += kib / 1024
			seen++
		}
	}
	if seen != 3 {
		return m, errors.New("smaps_rollup lacks Pss, Private_Clean or Private_Dirty")
	}
	return m, nil
}

// process is one entry of /proc.
type process struct {
	pid, parent int
	exe         string   // base name of the executable, "" for a kernel thread
	args        []string // its command line
}

// readProcesses lists the processes below a proc file system.
func readProcesses(proc string) ([]process, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	var procs []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(proc, entry.Name())
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		parent, err := parseParent(string(stat))
		if err != nil {
			return nil, fmt.Errorf("process %d: %w", pid, err)
		}
		cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		exe, _ := os.Readlink(filepath.Join(dir, "exe"))
		procs = append(procs, process{pid: pid, parent: parent, exe: exeName(exe),
			args: strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")})
	}
	return procs, nil
}

// parseParent finds the parent's PID in proc_pid_stat(5): the second field after the command, which may itself hold ") ".
func parseParent(stat string) (int, error) {
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(f) < 2 {
		return 0, fmt.Errorf("stat %q has no parent", stat)
	}
	return strconv.Atoi(f[1])
}

// exeName returns the name of an executable, which may be a memfd, or have been replaced since its
// start.
func exeName(link string) string {
	link = strings.TrimPrefix(strings.TrimSuffix(link, " (deleted)"), "/memfd:")
	if link == "" {
		return ""
	}
	return filepath.Base(link)
}

func (p process) isPayload() bool {
	return len(p.args) >= len(payload) && slices.Equal(p.args[len(p.args)-len(payload):], payload)
}

func (p process) is(exe program) bool {
	return p.exe == exe.name && strings.Contains(strings.Join(p.args, " "), exe.text)
}

// runtimeProcesses returns the PIDs of the processes given by PID or executable and of everything below them but payloads.
func runtimeProcesses(procs []process, pids []int, exes []program) []int {
	children := map[int][]process{}
	for _, p := range procs {
		children[p.parent] = append(children[p.parent], p)
	}
	found := map[int]bool{}
	var walk func(p process)
	walk = func(p process) {
		if found[p.pid] || p.isPayload() {
			return
		}
		found[p.pid] = true
		for _, child := range children[p.pid] {
			walk(child)
		}
	}
	for _, p := range procs {
		if slices.Contains(pids, p.pid) || slices.ContainsFunc(exes, p.is) {
			walk(p)
		}
	}
	var all []int
	for pid := range found {
		all = append(all, pid)
	}
	slices.Sort(all)
	return all
}
