package api

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/agent/crix"
	"github.com/crisp-cri/crisp/agent/volume"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The types of the kubelet's /stats/summary, as far as CRI tells them
// (k8s.io/kubelet/pkg/apis/stats/v1alpha1).
type (
	// Summary is the whole answer.
	Summary struct {
		Node NodeStats  `json:"node"`
		Pods []PodStats `json:"pods"`
	}
	NodeStats struct {
		NodeName  string       `json:"nodeName"`
		StartTime time.Time    `json:"startTime"`
		CPU       *CPUStats    `json:"cpu,omitempty"`
		Memory    *MemoryStats `json:"memory,omitempty"`
		Fs        *FsStats     `json:"fs,omitempty"`
		Runtime   *struct {
			ImageFs *FsStats `json:"imageFs,omitempty"`
		} `json:"runtime,omitempty"`
	}
	PodRef struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
		UID       string `json:"uid"`
	}
	PodStats struct {
		PodRef       PodRef           `json:"podRef"`
		StartTime    time.Time        `json:"startTime"`
		Containers   []ContainerStats `json:"containers"`
		CPU          *CPUStats        `json:"cpu,omitempty"`
		Memory       *MemoryStats     `json:"memory,omitempty"`
		Network      *NetworkStats    `json:"network,omitempty"`
		VolumeStats  []VolumeStats    `json:"volume,omitempty"`
		ProcessStats *ProcessStats    `json:"process_stats,omitempty"`
	}
	VolumeStats struct {
		FsStats `json:",inline"`
		Name    string  `json:"name"`
		PVCRef  *PVCRef `json:"pvcRef,omitempty"`
	}
	PVCRef struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	}
	ContainerStats struct {
		Name      string       `json:"name"`
		StartTime time.Time    `json:"startTime"`
		CPU       *CPUStats    `json:"cpu,omitempty"`
		Memory    *MemoryStats `json:"memory,omitempty"`
		Rootfs    *FsStats     `json:"rootfs,omitempty"`
		Swap      *SwapStats   `json:"swap,omitempty"`
	}
	CPUStats struct {
		Time                 time.Time `json:"time"`
		UsageNanoCores       *uint64   `json:"usageNanoCores,omitempty"`
		UsageCoreNanoSeconds *uint64   `json:"usageCoreNanoSeconds,omitempty"`
	}
	MemoryStats struct {
		Time            time.Time `json:"time"`
		AvailableBytes  *uint64   `json:"availableBytes,omitempty"`
		UsageBytes      *uint64   `json:"usageBytes,omitempty"`
		WorkingSetBytes *uint64   `json:"workingSetBytes,omitempty"`
		RSSBytes        *uint64   `json:"rssBytes,omitempty"`
		PageFaults      *uint64   `json:"pageFaults,omitempty"`
		MajorPageFaults *uint64   `json:"majorPageFaults,omitempty"`
	}
	SwapStats struct {
		Time               time.Time `json:"time"`
		SwapAvailableBytes *uint64   `json:"swapAvailableBytes,omitempty"`
		SwapUsageBytes     *uint64   `json:"swapUsageBytes,omitempty"`
	}
	FsStats struct {
		Time           time.Time `json:"time"`
		AvailableBytes *uint64   `json:"availableBytes,omitempty"`
		CapacityBytes  *uint64   `json:"capacityBytes,omitempty"`
		UsedBytes      *uint64   `json:"usedBytes,omitempty"`
		InodesFree     *uint64   `json:"inodesFree,omitempty"`
		Inodes         *uint64   `json:"inodes,omitempty"`
		InodesUsed     *uint64   `json:"inodesUsed,omitempty"`
	}
	InterfaceStats struct {
		Name     string  `json:"name"`
		RxBytes  *uint64 `json:"rxBytes,omitempty"`
		RxErrors *uint64 `json:"rxErrors,omitempty"`
		TxBytes  *uint64 `json:"txBytes,omitempty"`
		TxErrors *uint64 `json:"txErrors,omitempty"`
	}
	NetworkStats struct {
		Time           time.Time `json:"time"`
		InterfaceStats `json:",inline"`
		Interfaces     []InterfaceStats `json:"interfaces,omitempty"`
	}
	ProcessStats struct {
		ProcessCount *uint64 `json:"process_count,omitempty"`
	}
)

func (s *Server) summary(w http.ResponseWriter, r *http.Request) error {
	summary, err := s.stats(r)
	if err != nil {
		return err
	}
	if truth(r.URL.Query(), "only_cpu_and_memory") {
		summary.Node.Fs, summary.Node.Runtime = nil, nil
		for i := range summary.Pods {
			p := &summary.Pods[i]
			p.Network, p.ProcessStats, p.VolumeStats = nil, nil, nil
			for j := range p.Containers {
				p.Containers[j].Rootfs = nil
			}
		}
	}
	if !truth(r.URL.Query(), "only_cpu_and_memory") && s.Volumes != nil {
		s.addVolumes(summary.Pods)
	}
	write(w, http.StatusOK, summary)
	return nil
}

// addVolumes measures the volumes of pods, which takes a look at each of their files.
func (s *Server) addVolumes(stats []PodStats) {
	pods := map[string]*v1.Pod{}
	for _, pod := range s.Wanted.Pods() {
		pods[string(pod.UID)] = pod
	}
	for i := range stats {
		if pod := pods[stats[i].PodRef.UID]; pod != nil {
			stats[i].VolumeStats = volumeStats(pod, s.Volumes(pod))
		}
	}
}

func volumeStats(pod *v1.Pod, dirs map[string]string) []VolumeStats {
	var list []VolumeStats
	for _, v := range pod.Spec.Volumes {
		dir, measured := dirs[v.Name]
		fs := statfs(dir)
		if !measured || fs == nil {
			continue
		}
		bytes, inodes := volume.Usage(dir)
		used, taken := uint64(bytes), uint64(inodes)
		fs.UsedBytes, fs.InodesUsed = &used, &taken
		stats := VolumeStats{FsStats: *fs, Name: v.Name}
		if claim := v.PersistentVolumeClaim; claim != nil {
			stats.PVCRef = &PVCRef{claim.ClaimName, pod.Namespace}
		}
		list = append(list, stats)
	}
	return list
}

func (s *Server) stats(r *http.Request) (*Summary, error) {
	runtime, images, err := s.runtime()
	if err != nil {
		return nil, err
	}
	sandboxes, err := crix.PodStats(r.Context(), runtime)
	if err != nil {
		return nil, err
	}
	summary := &Summary{Node: s.nodeStats(), Pods: []PodStats{}}
	for _, sb := range sandboxes {
		summary.Pods = append(summary.Pods, podStats(sb))
	}
	slices.SortFunc(summary.Pods, func(a, b PodStats) int {
		return cmp.Or(cmp.Compare(a.PodRef.Namespace, b.PodRef.Namespace), cmp.Compare(a.PodRef.Name, b.PodRef.Name))
	})
	if info, err := images.ImageFsInfo(r.Context()); err == nil && len(info.GetImageFilesystems()) > 0 {
		fs := info.GetImageFilesystems()[0]
		summary.Node.Runtime = &struct {
			ImageFs *FsStats `json:"imageFs,omitempty"`
		}{fsStats(fs)}
		summary.Node.Fs = statfs("/")
	}
	return summary, nil
}

func at(ns int64) time.Time { return time.Unix(0, ns).UTC() }

// value reads CRI's wrapped numbers, of which nil is "not known".
func value(v *cri.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	return &v.Value
}

func cpuStats(c *cri.CpuUsage) *CPUStats {
	if c == nil {
		return nil
	}
	return &CPUStats{at(c.Timestamp), value(c.UsageNanoCores), value(c.UsageCoreNanoSeconds)}
}

func memoryStats(m *cri.MemoryUsage) *MemoryStats {
	if m == nil {
		return nil
	}
	return &MemoryStats{at(m.Timestamp), value(m.AvailableBytes), value(m.UsageBytes), value(m.WorkingSetBytes), value(m.RssBytes), value(m.PageFaults), value(m.MajorPageFaults)}
}

func fsStats(f *cri.FilesystemUsage) *FsStats {
	if f == nil {
		return nil
	}
	s := statfs(f.GetFsId().GetMountpoint())
	if s == nil {
		s = &FsStats{}
	}
	s.Time, s.UsedBytes, s.InodesUsed = at(f.Timestamp), value(f.UsedBytes), value(f.InodesUsed)
	return s
}

// statfs asks a file system how much it has; nil if it is not ours to see.
func statfs(path string) *FsStats {
	var st unix.Statfs_t
	if path == "" || unix.Statfs(path, &st) != nil {
		return nil
	}
	block := uint64(st.Bsize)
	capacity, available, used := st.Blocks*block, st.Bavail*block, (st.Blocks-st.Bfree)*block
	inodes, free := st.Files, st.Ffree
	taken := inodes - free
	return &FsStats{Time: time.Now().UTC(), AvailableBytes: &available, CapacityBytes: &capacity, UsedBytes: &used, Inodes: &inodes, InodesFree: &free, InodesUsed: &taken}
}

func podStats(sb *cri.PodSandboxStats) PodStats {
	m := sb.GetAttributes().GetMetadata()
	p := PodStats{PodRef: PodRef{m.GetName(), m.GetNamespace(), m.GetUid()}, Containers: []ContainerStats{}}
	l := sb.GetLinux()
	p.CPU, p.Memory = cpuStats(l.GetCpu()), memoryStats(l.GetMemory())
	if n := l.GetNetwork(); n != nil {
		p.Network = &NetworkStats{Time: at(n.Timestamp), InterfaceStats: interfaceStats(n.DefaultInterface)}
		for _, i := range append([]*cri.NetworkInterfaceUsage{n.DefaultInterface}, n.Interfaces...) {
			if i != nil {
				p.Network.Interfaces = append(p.Network.Interfaces, interfaceStats(i))
			}
		}
	}
	if l.GetProcess() != nil {
		p.ProcessStats = &ProcessStats{value(l.GetProcess().GetProcessCount())}
	}
	for _, c := range l.GetContainers() {
		st := ContainerStats{Name: c.GetAttributes().GetMetadata().GetName(), CPU: cpuStats(c.Cpu), Memory: memoryStats(c.Memory), Rootfs: fsStats(c.WritableLayer)}
		if c.Swap != nil {
			st.Swap = &SwapStats{at(c.Swap.Timestamp), value(c.Swap.SwapAvailableBytes), value(c.Swap.SwapUsageBytes)}
		}
		p.Containers = append(p.Containers, st)
	}
	slices.SortFunc(p.Containers, func(a, b ContainerStats) int { return cmp.Compare(a.Name, b.Name) })
	return p
}

func interfaceStats(i *cri.NetworkInterfaceUsage) InterfaceStats {
	if i == nil {
		return InterfaceStats{}
	}
	return InterfaceStats{i.Name, value(i.RxBytes), value(i.RxErrors), value(i.TxBytes), value(i.TxErrors)}
}
