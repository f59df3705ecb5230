package server

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/network"
	"github.com/crisp-cri/crisp/oci"
)

// A metric is one that the kubelet used to take from cAdvisor, under the name that dashboards
// know. CRI carries whole numbers only, so metrics in seconds lose their fraction.
type metric struct {
	name, help string
	labels     []string // beyond baseLabels
	kind       cri.MetricType
	values     func(*sample) []point
}

// A point is a value and its labels beyond the base ones.
type point struct {
	labels []string
	value  uint64
}

// A sample holds the measurements of a container at one time or, for network metrics, of a
// sandbox.
type sample struct {
	stats     oci.Stats
	status    oci.Status
	limits    *cri.LinuxContainerResources
	processes processCount
	fs        unix.Statfs_t // the file system of the writable layer
	used      uint64        // bytes of the writable layer
	ooms      uint64
	disks     []disk
	net       []network.InterfaceStats
}

// baseLabels are on every metric, as in cAdvisor: id is the cgroup, name the ID. On a metric of
// a whole pod, container is empty and image is sandboxImage.
var baseLabels = []string{"container", "id", "image", "name", "namespace", "pod"}

const (
	counter = cri.MetricType_COUNTER
	gauge   = cri.MetricType_GAUGE
)

// one returns the values function of a metric without extra labels.
func one(value func(*sample) uint64) func(*sample) []point {
	return func(s *sample) []point { return []point{{value: value(s)}} }
}

// total returns the values function of a metric that cAdvisor splits up and crisp does not; the
// label says so.
func total(label string, value func(*sample) uint64) func(*sample) []point {
	return func(s *sample) []point { return []point{{[]string{label}, value(s)}} }
}

// forEach returns the values function of a metric with a point for each item of a list.
func forEach[T any](list func(*sample) []T, label func(T) string, value func(T) uint64) func(*sample) []point {
	return func(s *sample) []point {
		var points []point
		for _, item := range list(s) {
			points = append(points, point{[]string{label(item)}, value(item)})
		}
		return points
	}
}

func perInterface(value func(network.InterfaceStats) uint64) func(*sample) []point {
	return forEach(func(s *sample) []network.InterfaceStats { return s.net }, func(i network.InterfaceStats) string { return i.Name }, value)
}

func perPageSize(value func(oci.HugePageStats) uint64) func(*sample) []point {
	return forEach(func(s *sample) []oci.HugePageStats { return s.stats.HugePages }, func(h oci.HugePageStats) string { return h.Size }, value)
}

func perDisk(value func(disk) uint64) func(*sample) []point {
	return forEach(func(s *sample) []disk { return s.disks }, func(d disk) string { return d.name }, value)
}

// stalled returns the values function of a pressure metric; the kernel counts microseconds.
func stalled(psi func(*sample) *oci.PSI, line func(*oci.PSI) oci.PSIData) func(*sample) []point {
	return func(s *sample) []point {
		p := psi(s)
		if p == nil {
			return nil
		}
		return []point{{value: line(p).Total / 1e6}}
	}
}

func some(p *oci.PSI) oci.PSIData { return p.Some }
func full(p *oci.PSI) oci.PSIData { return p.Full }

const nano = 1e9

// limit converts a memory limit to cAdvisor's form, where 0 means no limit.
func limit(v int64) uint64 { return uint64(max(v, 0)) }

// containerMetrics are the metrics of each container. A metric has no values if there is nothing
// to count: pressure without PSI, huge pages without their controller, a quota that is not set.
var containerMetrics = []metric{
	{"container_cpu_user_seconds_total", "CPU time spent in user mode, in seconds.", nil, counter,
		one(func(s *sample) uint64 { return s.stats.CPU.UserNs / nano })},
	{"container_cpu_system_seconds_total", "CPU time spent in the kernel, in seconds.", nil, counter,
		one(func(s *sample) uint64 { return s.stats.CPU.SystemNs / nano })},
	{"container_cpu_usage_seconds_total", "CPU time spent, in seconds.", []string{"cpu"}, counter,
		total("total", func(s *sample) uint64 { return s.stats.CPU.UsageNs / nano })},
	{"container_cpu_cfs_periods_total", "Periods in which the CPU quota was enforced.", nil, counter,
		one(func(s *sample) uint64 { return s.stats.CPU.Periods })},
	{"container_cpu_cfs_throttled_periods_total", "Periods in which the CPU quota was used up.", nil, counter,
		one(func(s *sample) uint64 { return s.stats.CPU.ThrottledPeriods })},
	{"container_cpu_cfs_throttled_seconds_total", "Time for which the CPU quota was used up, in seconds.", nil, counter,
		one(func(s *sample) uint64 { return s.stats.CPU.ThrottledNs / nano })},

	{"container_memory_cache", "Page cache, in bytes.", nil, gauge,
		one(func(s *sample) uint64 { return s.stats.Memory.Cache })},
	{"container_memory_rss", "Anonymous memory, in bytes.", nil, gauge,
		one(func(s *sample) uint64 { return s.stats.Memory.RSS })},
	{"container_memory_kernel_usage", "Memory of the kernel, in bytes.", nil, gauge,
		one(func(s *sample) uint64 { return s.stats.Memory.Kernel })},
	{"container_memory_mapped_file", "Mapped files, in bytes.", nil, gauge,
		one(func(s *sample) uint64 { return s.stats.Memory.MappedFile })},
	{"container_memory_swap", "Swap, in bytes.", nil, gauge,
		one(func(s *sample) uint64 { return s.stats.Swap.Usage })},
	{"container_memory_failcnt", "How often the memory limit was hit.", nil, counter,
		one(func(s *sample) uint64 { return s.stats.Memory.FailCount })},
	{"container_memory_usage_bytes", "All memory that is charged, in bytes.", nil, gauge,
		one(func(s *sample) uint64 { return s.stats.Memory.Usage })},
	{"container_memory_max_usage_bytes", "The most memory that was ever charged, in bytes.", nil, gauge,
		one(func(s *sample) uint64 { return s.stats.Memory.Peak })},
	{"container_memory_working_set_bytes", "Charged memory without inactive page cache, in bytes.", nil, gauge,
		one(func(s *sample) uint64 { return s.stats.Memory.WorkingSet })},
	{"container_memory_total_active_file_bytes", "Active page cache, in bytes.", nil, gauge,
		one(func(s *sample) uint64 { return s.stats.Memory.ActiveFile })},
	{"container_memory_total_inactive_file_bytes", "Inactive page cache, in bytes.", nil, gauge,
		one(func(s *sample) uint64 { return s.stats.Memory.InactiveFile })},
	{"container_memory_failures_total", "Page faults.", []string{"failure_type", "scope"}, counter,
		func(s *sample) []point {
			return []point{
				// Counters of containers and pods always include everything below them.
				{[]string{"pgfault", "container"}, s.stats.Memory.PageFaults},
				{[]string{"pgmajfault", "container"}, s.stats.Memory.MajorPageFaults},
				{[]string{"pgfault", "hierarchy"}, s.stats.Memory.PageFaults},
				{[]string{"pgmajfault", "hierarchy"}, s.stats.Memory.MajorPageFaults},
			}
		}},
	{"container_hugetlb_usage_bytes", "Huge pages, in bytes.", []string{"pagesize"}, gauge,
		perPageSize(func(h oci.HugePageStats) uint64 { return h.Usage })},
	{"container_hugetlb_max_usage_bytes", "The most huge pages ever used, in bytes; on cgroup v2, which does not count it, those in use.", []string{"pagesize"}, gauge,
		perPageSize(func(h oci.HugePageStats) uint64 { return h.Max })},
	{"container_oom_events_total", "OOM kills that crispd has seen.", nil, counter,
		one(func(s *sample) uint64 { return s.ooms })},

	{"container_fs_inodes_free", "Free inodes of the file system of the writable layer.", nil, gauge,
		one(func(s *sample) uint64 { return s.fs.Ffree })},
	{"container_fs_inodes_total", "Inodes of the file system of the writable layer.", nil, gauge,
		one(func(s *sample) uint64 { return s.fs.Files })},
	{"container_fs_limit_bytes", "Size of the file system of the writable layer, in bytes.", nil, gauge,
		one(func(s *sample) uint64 { return s.fs.Blocks * uint64(s.fs.Bsize) })},
	{"container_fs_usage_bytes", "Size of the writable layer, in bytes.", nil, gauge,
		one(func(s *sample) uint64 { return s.used })},
	{"container_fs_reads_bytes_total", "Bytes read from a block device.", []string{"device"}, counter,
		perDisk(func(d disk) uint64 { return d.ReadBytes })},
	{"container_fs_reads_total", "Reads from a block device.", []string{"device"}, counter,
		perDisk(func(d disk) uint64 { return d.Reads })},
	{"container_fs_writes_bytes_total", "Bytes written to a block device.", []string{"device"}, counter,
		perDisk(func(d disk) uint64 { return d.WriteBytes })},
	{"container_fs_writes_total", "Writes to a block device.", []string{"device"}, counter,
		perDisk(func(d disk) uint64 { return d.Writes })},
	{"container_blkio_device_usage_total", "Bytes moved from and to a block device.", []string{"device", "major", "minor", "operation"}, counter, diskUsage},

	{"container_file_descriptors", "Open file descriptors.", nil, gauge,
		one(func(s *sample) uint64 { return s.processes.files })},
	{"container_sockets", "Open sockets.", nil, gauge,
		one(func(s *sample) uint64 { return s.processes.sockets })},
	{"container_processes", "Processes.", nil, gauge,
		one(func(s *sample) uint64 { return s.processes.processes })},
	{"container_threads", "Threads.", nil, gauge,
		one(func(s *sample) uint64 { return s.stats.Pids.Current })},
	{"container_threads_max", "The most threads allowed; 0 for no limit.", nil, gauge,
		one(func(s *sample) uint64 { return s.stats.Pids.Limit })},
	{"container_ulimits_soft", "Soft limits of the first process.", []string{"ulimit"}, gauge,
		func(s *sample) []point {
			if s.processes.maxFiles == 0 {
				return nil
			}
			return []point{{[]string{"max_open_files"}, s.processes.maxFiles}}
		}},

	{"container_last_seen", "When the container was looked at, in seconds since 1970.", nil, gauge,
		one(func(s *sample) uint64 { return uint64(s.stats.At.Unix()) })},
	{"container_start_time_seconds", "When the container was started, in seconds since 1970.", nil, gauge,
		one(func(s *sample) uint64 { return uint64(s.status.StartedAt.Unix()) })},
	{"container_spec_memory_limit_bytes", "Memory limit, in bytes; 0 for none.", nil, gauge,
		one(func(s *sample) uint64 { return limit(s.limits.GetMemoryLimitInBytes()) })},
	{"container_spec_memory_reservation_limit_bytes", "Memory that is spared when it is short, in bytes; 0 for none.", nil, gauge,
		one(func(s *sample) uint64 { return s.stats.Memory.Reservation })},
	{"container_spec_memory_swap_limit_bytes", "Limit of memory and swap together, in bytes; 0 for none.", nil, gauge,
		one(func(s *sample) uint64 { return limit(s.limits.GetMemorySwapLimitInBytes()) })},
	{"container_spec_cpu_period", "Length of a period of the CPU quota, in microseconds.", nil, gauge,
		one(func(s *sample) uint64 { return limit(s.limits.GetCpuPeriod()) })},
	{"container_spec_cpu_quota", "CPU time per period, in microseconds; absent without a quota.", nil, gauge,
		func(s *sample) []point {
			if s.limits.GetCpuQuota() <= 0 {
				return nil
			}
			return []point{{value: uint64(s.limits.GetCpuQuota())}}
		}},
	{"container_spec_cpu_shares", "CPU shares.", nil, gauge,
		one(func(s *sample) uint64 { return limit(s.limits.GetCpuShares()) })},

	{"container_pressure_cpu_waiting_seconds_total", "Time for which some task waited for a CPU, in seconds.", nil, counter,
		stalled(func(s *sample) *oci.PSI { return s.stats.CPU.PSI }, some)},
	{"container_pressure_cpu_stalled_seconds_total", "Time for which all tasks waited for a CPU, in seconds.", nil, counter,
		stalled(func(s *sample) *oci.PSI { return s.stats.CPU.PSI }, full)},
	{"container_pressure_memory_waiting_seconds_total", "Time for which some task waited for memory, in seconds.", nil, counter,
		stalled(func(s *sample) *oci.PSI { return s.stats.Memory.PSI }, some)},
	{"container_pressure_memory_stalled_seconds_total", "Time for which all tasks waited for memory, in seconds.", nil, counter,
		stalled(func(s *sample) *oci.PSI { return s.stats.Memory.PSI }, full)},
	{"container_pressure_io_waiting_seconds_total", "Time for which some task waited for a device, in seconds.", nil, counter,
		stalled(func(s *sample) *oci.PSI { return s.stats.IO.PSI }, some)},
	{"container_pressure_io_stalled_seconds_total", "Time for which all tasks waited for a device, in seconds.", nil, counter,
		stalled(func(s *sample) *oci.PSI { return s.stats.IO.PSI }, full)},
}

// sandboxMetrics are the metrics of each sandbox: the network is the pod's.
var sandboxMetrics = []metric{
	{"container_network_receive_bytes_total", "Bytes received.", []string{"interface"}, counter,
		perInterface(func(i network.InterfaceStats) uint64 { return i.RxBytes })},
	{"container_network_receive_packets_total", "Packets received.", []string{"interface"}, counter,
		perInterface(func(i network.InterfaceStats) uint64 { return i.RxPackets })},
	{"container_network_receive_packets_dropped_total", "Packets dropped on their way in.", []string{"interface"}, counter,
		perInterface(func(i network.InterfaceStats) uint64 { return i.RxDropped })},
	{"container_network_receive_errors_total", "Errors on the way in.", []string{"interface"}, counter,
		perInterface(func(i network.InterfaceStats) uint64 { return i.RxErrors })},
	{"container_network_transmit_bytes_total", "Bytes sent.", []string{"interface"}, counter,
		perInterface(func(i network.InterfaceStats) uint64 { return i.TxBytes })},
	{"container_network_transmit_packets_total", "Packets sent.", []string{"interface"}, counter,
		perInterface(func(i network.InterfaceStats) uint64 { return i.TxPackets })},
	{"container_network_transmit_packets_dropped_total", "Packets dropped on their way out.", []string{"interface"}, counter,
		perInterface(func(i network.InterfaceStats) uint64 { return i.TxDropped })},
	{"container_network_transmit_errors_total", "Errors on the way out.", []string{"interface"}, counter,
		perInterface(func(i network.InterfaceStats) uint64 { return i.TxErrors })},
}

// A disk is a block device that a container has used.
type disk struct {
	oci.DeviceIO
	name string // "/dev/sda", as in cAdvisor
}

// sysBlock has a directory for each block device, named by its number.
const sysBlock = "/sys/dev/block"

// disks names devices by the uevent files in a directory such as sysBlock. A device that has
// been removed goes by its number. Without devices it returns a single entry without name and
// counts, because a counter should exist from the start.
func disks(dir string, devices []oci.DeviceIO) []disk {
	if len(devices) == 0 {
		return []disk{{}}
	}
	list := make([]disk, len(devices))
	for i, d := range devices {
		list[i] = disk{d, d.Device}
		uevent, _ := os.ReadFile(filepath.Join(dir, d.Device, "uevent")) // missing file: no lines
		for line := range strings.Lines(string(uevent)) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); ok {
				list[i].name = "/dev/" + name
			}
		}
	}
	return list
}

func diskUsage(s *sample) []point {
	var list []point
	for _, d := range s.disks {
		major, minor, _ := strings.Cut(d.Device, ":")
		list = append(list,
			point{[]string{d.name, major, minor, "Read"}, d.ReadBytes},
			point{[]string{d.name, major, minor, "Write"}, d.WriteBytes})
	}
	return list
}
