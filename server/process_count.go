package server

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/crisp-cri/crisp/internal/procstat"
)

// A processCount counts the processes of a container and their open files and sockets.
type processCount struct {
	processes, files, sockets uint64
	maxFiles                  uint64 // RLIMIT_NOFILE of the first process, soft; 0 if unknown
}

// countProcesses counts the process pid and all its descendants (proc_pid_task_tid_children(5)).
// A process that ends meanwhile is not counted.
func countProcesses(pid int) processCount {
	var n processCount
	if pid <= 0 {
		return n
	}
	n.maxFiles = maxFiles(pid)
	todo := []int{pid}
	for len(todo) > 0 {
		pid, todo = todo[len(todo)-1], todo[:len(todo)-1]
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		entries, err := os.ReadDir(filepath.Join(dir, "fd"))
		if err != nil {
			continue
		}
		n.processes++
		n.files += uint64(len(entries))
		for _, e := range entries {
			if to, err := os.Readlink(filepath.Join(dir, "fd", e.Name())); err == nil && strings.HasPrefix(to, "socket:") {
				n.sockets++
			}
		}
		children, _ := filepath.Glob(filepath.Join(dir, "task", "*", "children"))
		for _, file := range children {
			todo = append(todo, procstat.PIDs(file)...)
		}
	}
	return n
}

// maxFiles reads the soft limit of open files (proc_pid_limits(5)); 0 also means unlimited.
func maxFiles(pid int) uint64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte("Max open files")); ok {
			if f := bytes.Fields(rest); len(f) > 0 {
				n, _ := strconv.ParseUint(string(f[0]), 10, 64)
				return n
			}
		}
	}
	return 0
}

// oomCount counts, by container, the OOM kills that the executor reports. The zero value has
// counted none.
type oomCount struct {
	mu   sync.Mutex
	seen map[string]uint64 // guarded by mu; by container ID
}

func (o *oomCount) add(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen == nil {
		o.seen = make(map[string]uint64)
	}
	o.seen[id]++
}

func (o *oomCount) count(id string) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen[id]
}

func (o *oomCount) forget(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.seen, id)
}
