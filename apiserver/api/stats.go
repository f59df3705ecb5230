package api

import (
	"cmp"
	"context"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// summary is the kubelet's /stats/summary, as far as CRI, /proc and the disk provide it.
func (s *Server) summary(w http.ResponseWriter, r *http.Request) error {
	summary, err := s.podStats(r.Context())
	if err != nil {
		return err
	}
	if BoolParam(r.URL.Query(), "only_cpu_and_memory") {
		for i := range summary.Pods {
			p := &summary.Pods[i]
			p.Network, p.ProcessStats = nil, nil
			for j := range p.Containers {
				p.Containers[j].Rootfs = nil
			}
		}
	} else {
		s.addNodeFiles(r.Context(), &summary.Node)
		s.addFiles(summary.Pods)
	}
	return Write(w, http.StatusOK, summary)
}

// addNodeFiles adds the file systems of the node and, if it answers, of the runtime.
func (s *Server) addNodeFiles(ctx context.Context, n *stats.NodeStats) {
	_, images, err := s.Runtime()
	if err != nil {
		return
	}
	info, err := images.ImageFsInfo(ctx)
	if err != nil || len(info.GetImageFilesystems()) == 0 {
		return
	}
	fs := fsStats(info.GetImageFilesystems()[0])
	n.Fs, n.Runtime = statfs("/"), &stats.RuntimeStats{ImageFs: fs, ContainerFs: fs}
	if layers := info.GetContainerFilesystems(); len(layers) > 0 {
		n.Runtime.ContainerFs = fsStats(layers[0])
	}
}

// addFiles measures the disk usage of pods' logs and volumes.
func (s *Server) addFiles(list []stats.PodStats) {
	pods := map[string]*v1.Pod{}
	for _, pod := range s.o.Wanted.Pods() {
		pods[string(pod.UID)] = pod
	}
	for i := range list {
		pod := pods[list[i].PodRef.UID]
		if pod == nil {
			continue
		}
		s.disk.addFiles(&list[i], pod, s.o.Volumes.Measured(pod), s.o.Files.LogDir(pod))
	}
}

// addFiles measures a pod's volumes, which are in dirs by name, and its containers' logs, which are
// below logs.
func (u *diskUse) addFiles(p *stats.PodStats, pod *v1.Pod, dirs map[string]string, logs string) {
	p.VolumeStats = u.volumeStats(pod, dirs)
	scratch := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		scratch[v.Name] = v.EmptyDir != nil && v.EmptyDir.Medium == v1.StorageMediumDefault
	}
	sum := statfs(logs)
	var bytes, inodes uint64
	add := func(fs *stats.FsStats) {
		if fs != nil && fs.UsedBytes != nil && fs.InodesUsed != nil {
			bytes, inodes = bytes+*fs.UsedBytes, inodes+*fs.InodesUsed
		}
	}
	for i := range p.Containers {
		c := &p.Containers[i]
		c.Logs = u.of(filepath.Join(logs, c.Name))
		add(c.Rootfs)
		add(c.Logs)
	}
	for i := range p.VolumeStats {
		if scratch[p.VolumeStats[i].Name] {
			add(&p.VolumeStats[i].FsStats)
		}
	}
	if sum != nil {
		sum.UsedBytes, sum.InodesUsed = &bytes, &inodes
		p.EphemeralStorage = sum
	}
}

func (u *diskUse) volumeStats(pod *v1.Pod, dirs map[string]string) []stats.VolumeStats {
	var list []stats.VolumeStats
	for _, v := range pod.Spec.Volumes {
		fs := u.of(dirs[v.Name])
		if fs == nil {
			continue
		}
		of := stats.VolumeStats{FsStats: *fs, Name: v.Name}
		if claim := v.PersistentVolumeClaim; claim != nil {
			of.PVCRef = &stats.PVCReference{Name: claim.ClaimName, Namespace: pod.Namespace}
		}
		list = append(list, of)
	}
	return list
}

func (s *Server) podStats(ctx context.Context) (*stats.Summary, error) {
	runtime, _, err := s.Runtime()
	if err != nil {
		return nil, err
	}
	sandboxes, err := criruntime.PodStats(ctx, runtime)
	if err != nil {
		return nil, err
	}
	summary := &stats.Summary{Node: s.NodeStats(), Pods: []stats.PodStats{}}
	started := s.starts()
	for _, sb := range sandboxes {
		p := podStats(sb)
		p.StartTime = started[p.PodRef.UID]
		for i := range p.Containers {
			p.Containers[i].StartTime = started[p.PodRef.UID+"/"+p.Containers[i].Name]
		}
		summary.Pods = append(summary.Pods, p)
	}
	slices.SortFunc(summary.Pods, func(a, b stats.PodStats) int {
		return cmp.Or(cmp.Compare(a.PodRef.Namespace, b.PodRef.Namespace), cmp.Compare(a.PodRef.Name, b.PodRef.Name))
	})
	return summary, nil
}

// starts returns the start of each pod by its UID, and of each running container by the pod's UID
// and its name.
func (s *Server) starts() map[string]metav1.Time {
	starts := map[string]metav1.Time{}
	for _, p := range s.sources.pods() {
		pod, now := p.pod, p.currentStatus()
		if at := now.StartTime; at != nil {
			starts[string(pod.UID)] = *at
		}
		for _, c := range slices.Concat(now.InitContainerStatuses, now.ContainerStatuses, now.EphemeralContainerStatuses) {
			if c.State.Running != nil {
				starts[string(pod.UID)+"/"+c.Name] = c.State.Running.StartedAt
			}
		}
	}
	return starts
}

func at(ns int64) metav1.Time { return metav1.Unix(0, ns) }

// value unwraps a number of CRI; nil means unknown.
func value(v *cri.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	return &v.Value
}

func cpuStats(c *cri.CpuUsage) *stats.CPUStats {
	if c == nil {
		return nil
	}
	return &stats.CPUStats{Time: at(c.Timestamp), UsageNanoCores: value(c.UsageNanoCores), UsageCoreNanoSeconds: value(c.UsageCoreNanoSeconds), PSI: psi(c.Psi)}
}

func memoryStats(m *cri.MemoryUsage) *stats.MemoryStats {
	if m == nil {
		return nil
	}
	return &stats.MemoryStats{
		Time: at(m.Timestamp), AvailableBytes: value(m.AvailableBytes), UsageBytes: value(m.UsageBytes), WorkingSetBytes: value(m.WorkingSetBytes),
		RSSBytes: value(m.RssBytes), PageFaults: value(m.PageFaults), MajorPageFaults: value(m.MajorPageFaults), PSI: psi(m.Psi),
	}
}

func ioStats(i *cri.IoUsage) *stats.IOStats {
	if i == nil {
		return nil
	}
	return &stats.IOStats{Time: at(i.Timestamp), PSI: psi(i.Psi)}
}

func swapStats(s *cri.SwapUsage) *stats.SwapStats {
	if s == nil {
		return nil
	}
	return &stats.SwapStats{Time: at(s.Timestamp), SwapAvailableBytes: value(s.SwapAvailableBytes), SwapUsageBytes: value(s.SwapUsageBytes)}
}

func psi(p *cri.PsiStats) *stats.PSIStats {
	if p == nil {
		return nil
	}
	data := func(d *cri.PsiData) stats.PSIData {
		return stats.PSIData{Total: d.GetTotal(), Avg10: d.GetAvg10(), Avg60: d.GetAvg60(), Avg300: d.GetAvg300()}
	}
	return &stats.PSIStats{Full: data(p.Full), Some: data(p.Some)}
}

func fsStats(f *cri.FilesystemUsage) *stats.FsStats {
	if f == nil {
		return nil
	}
	s := statfs(f.GetFsId().GetMountpoint())
	if s == nil {
		s = &stats.FsStats{}
	}
	s.Time, s.UsedBytes, s.InodesUsed = at(f.Timestamp), value(f.UsedBytes), value(f.InodesUsed)
	return s
}

// statfs returns the size and usage of a file system; nil if the path cannot be read.
func statfs(path string) *stats.FsStats {
	var st unix.Statfs_t
	if path == "" || unix.Statfs(path, &st) != nil {
		return nil
	}
	block := uint64(st.Bsize)
	capacity, available, used := st.Blocks*block, st.Bavail*block, (st.Blocks-st.Bfree)*block
	inodes, free := st.Files, st.Ffree
	taken := inodes - free
	return &stats.FsStats{Time: metav1.Now(), AvailableBytes: &available, CapacityBytes: &capacity, UsedBytes: &used, Inodes: &inodes, InodesFree: &free, InodesUsed: &taken}
}

func podStats(sb *cri.PodSandboxStats) stats.PodStats {
	m := sb.GetAttributes().GetMetadata()
	p := stats.PodStats{PodRef: stats.PodReference{Name: m.GetName(), Namespace: m.GetNamespace(), UID: m.GetUid()}, Containers: []stats.ContainerStats{}}
	l := sb.GetLinux()
	p.CPU, p.Memory, p.IO = cpuStats(l.GetCpu()), memoryStats(l.GetMemory()), ioStats(l.GetIo())
	if n := l.GetNetwork(); n != nil {
		p.Network = &stats.NetworkStats{Time: at(n.Timestamp), InterfaceStats: interfaceStats(n.DefaultInterface)}
		seen := map[string]bool{} // some runtimes list the default interface again
		for _, i := range append([]*cri.NetworkInterfaceUsage{n.DefaultInterface}, n.Interfaces...) {
			if i != nil && !seen[i.Name] {
				seen[i.Name] = true
				p.Network.Interfaces = append(p.Network.Interfaces, interfaceStats(i))
			}
		}
	}
	if l.GetProcess() != nil {
		p.ProcessStats = &stats.ProcessStats{ProcessCount: value(l.GetProcess().GetProcessCount())}
	}
	for _, c := range l.GetContainers() {
		p.Containers = append(p.Containers, stats.ContainerStats{
			Name: c.GetAttributes().GetMetadata().GetName(), CPU: cpuStats(c.Cpu), Memory: memoryStats(c.Memory), IO: ioStats(c.Io),
			Rootfs: fsStats(c.WritableLayer), Swap: swapStats(c.Swap),
		})
	}
	slices.SortFunc(p.Containers, func(a, b stats.ContainerStats) int { return cmp.Compare(a.Name, b.Name) })
	return p
}

func interfaceStats(i *cri.NetworkInterfaceUsage) stats.InterfaceStats {
	return stats.InterfaceStats{
		Name: i.GetName(), RxBytes: value(i.GetRxBytes()), RxErrors: value(i.GetRxErrors()), TxBytes: value(i.GetTxBytes()), TxErrors: value(i.GetTxErrors()),
	}
}

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
