package server

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/prometheus/procfs"

	"github.com/crisp-cri/crisp/internal/procstat"
)

// A processCount counts the processes of a container and their open files and sockets.
type processCount struct {
	processes, files, sockets uint64
	maxFiles                  uint64 // RLIMIT_NOFILE of the first process, soft; 0 if unknown
}

// countProcesses counts the process pid and all its descendants (proc_pid_task_tid_children(5)), none for 0.
// A process that ends meanwhile is not counted.
func countProcesses(pid int) processCount {
	var n processCount
	for todo := []int{pid}; len(todo) > 0; {
		pid, todo = todo[len(todo)-1], todo[:len(todo)-1]
		proc, err := procfs.NewProc(pid)
		if err != nil {
			continue
		}
		files, err := proc.FileDescriptorTargets()
		if err != nil {
			continue
		}
		if limits, err := proc.Limits(); err == nil && n.processes == 0 {
			n.maxFiles = limits.OpenFiles
		}
		n.processes++
		n.files += uint64(len(files))
		for _, to := range files {
			if strings.HasPrefix(to, "socket:") {
				n.sockets++
			}
		}
		children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, file := range children {
			todo = append(todo, procstat.PIDs(file)...)
		}
	}
	return n
}
