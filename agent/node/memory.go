package node

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A Memory is the use of the machine's memory, in bytes.
type Memory struct {
	Total, Usage uint64
	// WorkingSet is the memory in use without inactive file pages. The kubelet's
	// statistics and its signal memory.available are based on it. The kernel can
	// reclaim more of the page cache (MemAvailable), but thresholds are chosen for this
	// value.
	WorkingSet uint64
}

// Available returns the kubelet's signal memory.available, in bytes.
func (m Memory) Available() uint64 { return m.Total - min(m.WorkingSet, m.Total) }

// ReadMemory reads /proc/meminfo and the root cgroup; ok is false if the former has no total.
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
	} else if inactive == 0 { // no cgroup file system
		inactive = info["Inactive(file):"] << 10
	}
	m.WorkingSet = m.Usage - min(inactive, m.Usage)
	return m, true
}

// numbers reads a file with a name and a number in each line; it returns nil if it cannot.
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
