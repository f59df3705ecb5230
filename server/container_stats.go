package server

import (
	"context"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/oci"
)

// ContainerStats returns a container's resource usage.
//
// CRI: "If the container does not exist, the call returns an error."
func (s *Server) ContainerStats(_ context.Context, req *cri.ContainerStatsRequest) (*cri.ContainerStatsResponse, error) {
	c, err := s.runtime.Container(req.ContainerId)
	if err != nil {
		return nil, err
	}
	return &cri.ContainerStatsResponse{Stats: s.containerStats(c)}, nil
}

// containerStats reads the cgroup of c. A container that has ended has no cgroup any more: only
// its writable layer is reported.
func (s *Server) containerStats(c *oci.Container) *cri.ContainerStats {
	rec := s.index.container(c)
	out := &cri.ContainerStats{
		Attributes: &cri.ContainerAttributes{
			Id: c.ID(), Metadata: rec.config.Metadata, Labels: rec.config.Labels, Annotations: rec.config.Annotations,
		},
		WritableLayer: s.writableLayer(c.ID()),
	}
	st, err := c.Usage()
	if err != nil {
		return out // it has just exited
	}
	out.Cpu = s.cpuUsage(c.ID(), st, c.Status().StartedAt)
	if c.Status().State == oci.Removing {
		s.cpu.forget(c.ID()) // the event that it is gone may be over
	}
	out.Memory = memoryUsage(st)
	out.Swap = swapUsage(st)
	out.Io = &cri.IoUsage{Timestamp: st.At.UnixNano(), Psi: pressure(st.IO.PSI)}
	return out
}

func (s *Server) writableLayer(id string) *cri.FilesystemUsage {
	usage := &cri.FilesystemUsage{
		Timestamp: time.Now().UnixNano(),
		FsId:      &cri.FilesystemIdentifier{Mountpoint: s.imageRoot()},
	}
	if bytes, inodes, err := s.rootfs.Usage(id); err == nil {
		usage.UsedBytes, usage.InodesUsed = value(bytes), value(inodes)
	}
	return usage
}

func (s *Server) cpuUsage(id string, st oci.Stats, since time.Time) *cri.CpuUsage {
	return &cri.CpuUsage{
		Timestamp:            st.At.UnixNano(),
		UsageCoreNanoSeconds: value(st.CPU.UsageNs),
		UsageNanoCores:       value(s.cpu.rate(id, st.At, st.CPU.UsageNs, since)),
		Psi:                  pressure(st.CPU.PSI),
	}
}

// memoryUsage omits the available memory if there is no limit, as the kubelet's own statistics
// do: 0 would mean that none is available.
func memoryUsage(st oci.Stats) *cri.MemoryUsage {
	out := &cri.MemoryUsage{
		Timestamp:       st.At.UnixNano(),
		WorkingSetBytes: value(st.Memory.WorkingSet),
		UsageBytes:      value(st.Memory.Usage),
		RssBytes:        value(st.Memory.RSS),
		PageFaults:      value(st.Memory.PageFaults),
		MajorPageFaults: value(st.Memory.MajorPageFaults),
		Psi:             pressure(st.Memory.PSI),
	}
	if st.Memory.Limit > 0 {
		out.AvailableBytes = value(st.Memory.Available)
	}
	return out
}

// swapUsage omits the available swap for the same reason.
func swapUsage(st oci.Stats) *cri.SwapUsage {
	out := &cri.SwapUsage{Timestamp: st.At.UnixNano(), SwapUsageBytes: value(st.Swap.Usage)}
	if st.Swap.Limited {
		out.SwapAvailableBytes = value(st.Swap.Available)
	}
	return out
}

func value(v uint64) *cri.UInt64Value { return &cri.UInt64Value{Value: v} }

// pressure translates pressure stall information; CRI counts the total in
// nanoseconds.
func pressure(p *oci.PSI) *cri.PsiStats {
	if p == nil {
		return nil
	}
	line := func(d oci.PSIData) *cri.PsiData {
		return &cri.PsiData{Total: d.Total * 1000, Avg10: d.Avg10, Avg60: d.Avg60, Avg300: d.Avg300}
	}
	return &cri.PsiStats{Full: line(p.Full), Some: line(p.Some)}
}

// cpuWindow is the shortest time over which a rate is meaningful.
const cpuWindow = time.Second

// cpuRates keeps the last sample of CPU usage of each cgroup, to compute rates. The zero value
// is ready and empty.
type cpuRates struct {
	mu   sync.Mutex
	seen map[string]*cpuSeen // guarded by mu; by ID of container or sandbox
}

type cpuSeen struct {
	at    time.Time
	usage uint64 // nanoseconds
	rate  uint64 // nanocores, from the previous sample to this one
}

// rate returns the nanocores used between two samples at least cpuWindow apart. The first sample
// is compared with the start, when the usage was zero.
func (r *cpuRates) rate(id string, at time.Time, usage uint64, since time.Time) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = make(map[string]*cpuSeen)
	}
	last, ok := r.seen[id]
	if !ok {
		last = &cpuSeen{at: since}
		r.seen[id] = last
	}
	if took := at.Sub(last.at); took < 0 { // the clock was set back after the start
		last.at, last.usage = at, usage
	} else if took >= cpuWindow || !ok && took > 0 {
		if usage >= last.usage {
			last.rate = uint64(float64(usage-last.usage) / took.Seconds())
		}
		last.at, last.usage = at, usage
	}
	return last.rate
}

func (r *cpuRates) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.seen, id)
}
