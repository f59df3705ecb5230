package node

import (
	"path/filepath"

	"github.com/opencontainers/cgroups/fscommon"
	"github.com/prometheus/procfs"
	"k8s.io/utils/ptr"
)

// An Observation is what is left of a resource: bytes, inodes or threads.
type Observation struct{ Available, Capacity int64 }

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
func ReadMemory() (m Memory, ok bool) { return readMemory("/proc", "/sys/fs/cgroup") }

func readMemory(proc, cgroup string) (m Memory, ok bool) {
	fs, err := procfs.NewFS(proc)
	if err != nil {
		return m, false
	}
	info, err := fs.Meminfo()
	if err != nil || ptr.Deref(info.MemTotalBytes, 0) == 0 {
		return m, false
	}
	m.Total = *info.MemTotalBytes
	m.Usage = m.Total - ptr.Deref(info.MemFreeBytes, 0)
	v1 := filepath.Join(cgroup, "memory")
	inactive, _ := fscommon.GetValueByKey(cgroup, "memory.stat", "inactive_file")
	if usage, err := fscommon.GetCgroupParamUint(v1, "memory.usage_in_bytes"); err == nil {
		m.Usage = usage
		inactive, _ = fscommon.GetValueByKey(v1, "memory.stat", "total_inactive_file")
	} else if inactive == 0 { // no cgroup file system
		inactive = ptr.Deref(info.InactiveFileBytes, 0)
	}
	m.WorkingSet = m.Usage - min(inactive, m.Usage)
	return m, true
}
