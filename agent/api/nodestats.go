package api

import (
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/node"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// NodeStats are what /proc tells of the whole machine.
func (s *Server) NodeStats() stats.NodeStats {
	n := stats.NodeStats{NodeName: s.o.Node.Node().Name}
	now := metav1.Now()
	if data, err := os.ReadFile("/proc/stat"); err == nil {
		for line := range strings.Lines(string(data)) {
			words := strings.Fields(line)
			switch {
			case len(words) > 8 && words[0] == "cpu":
				n.CPU = &stats.CPUStats{Time: now, UsageCoreNanoSeconds: busy(words[1:])}
			case len(words) == 2 && words[0] == "btime":
				if seconds, err := strconv.ParseInt(words[1], 10, 64); err == nil {
					n.StartTime = metav1.Unix(seconds, 0)
				}
			}
		}
	}
	if m, ok := node.ReadMemory(); ok {
		available := m.Available()
		n.Memory = &stats.MemoryStats{Time: now, AvailableBytes: &available, WorkingSetBytes: &m.WorkingSet, UsageBytes: &m.Usage}
	}
	return n
}

// busy is the time that the CPUs did not idle, of the columns of proc_stat(5), in
// nanoseconds. The kernel counts in ticks of 10 ms (USER_HZ is 100 on every
// architecture that crisp runs on).
func busy(columns []string) *uint64 {
	var ticks uint64
	for i, text := range columns {
		v, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil
		}
		const idle, iowait, guest, guestNice = 3, 4, 8, 9
		switch i {
		case idle, iowait, guest, guestNice: // a guest's time is in user's already
		default:
			ticks += v
		}
	}
	ns := ticks * uint64(10*time.Millisecond)
	return &ns
}
