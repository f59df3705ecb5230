package node

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A Memory is what of the machine's memory is in use, in bytes.
type Memory struct {
	Total, Usage uint64
	// WorkingSet is what the kubelet's signal memory.available and its statistics
	// go by: all that is used but for file pages that nobody has used lately. More
	// of the page cache could be given back than that, MemAvailable says how much;
	// but thresholds are written for this one.
	WorkingSet uint64
}

// Available is memory.available.
func (m Memory) Available() uint64 { return m.Total - min(m.WorkingSet, m.Total) }

// ReadMemory asks the kernel; ok is false if it does not tell.
func ReadMemory() (m Memory, ok bool) { return readMemory("/proc/meminfo", "/sys/fs/cgroup") }

func readMemory(meminfo, cgroups string) (m Memory, ok bool) {
	info := numbers(meminfo) // proc_meminfo(5), in KiB
	if info["MemTotal:"] == 0 {
		return m, false
	}
	m.Total = info["MemTotal:"] << 10
	m.Usage = m.Total - info["MemFree:"]<<10
	inactive := numbers(filepath.Join(cgroups, "memory.stat"))["inactive_file"]
	if data, err := os.ReadFile(filepath.Join(cgroups, "memory", "memory.usage_in_bytes")); err == nil { // v1
		if usage, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64); err == nil {
			m.Usage = usage
		}
		inactive = numbers(filepath.Join(cgroups, "memory", "memory.stat"))["total_inactive_file"]
	} else if inactive == 0 { // no cgroups to be seen
		inactive = info["Inactive(file):"] << 10
	}
	m.WorkingSet = m.Usage - min(inactive, m.Usage)
	return m, true
}

// numbers reads a file of names and numbers; one that cannot be read has none.
func numbers(path string) map[string]uint64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	found := map[string]uint64{}
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		if n, err := strconv.ParseUint(words[1], 10, 64); err == nil {
			found[words[0]] = n
		}
	}
	return found
}
