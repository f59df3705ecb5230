package api

import (
	"time"

	"github.com/crisp-cri/crisp/agent/node"
	"github.com/prometheus/procfs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// NodeStats returns the statistics of the whole machine from /proc.
func (s *Server) NodeStats() stats.NodeStats {
	n := stats.NodeStats{NodeName: s.o.Node.Node().Name}
	now := metav1.Now()
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if stat, err := fs.Stat(); err == nil {
			n.CPU = &stats.CPUStats{Time: now, UsageCoreNanoSeconds: busy(&stat.CPUTotal)}
			n.StartTime = metav1.Unix(int64(stat.BootTime), 0)
		}
	}
	if m, ok := node.ReadMemory(); ok {
		available := m.Available()
		n.Memory = &stats.MemoryStats{Time: now, AvailableBytes: &available, WorkingSetBytes: &m.WorkingSet, UsageBytes: &m.Usage}
	}
	return n
}

// busy returns the CPU time that was not idle, in nanoseconds. User time includes that of guests.
func busy(c *procfs.CPUStat) *uint64 {
	seconds := c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal
	return new(uint64(seconds * float64(time.Second)))
}
