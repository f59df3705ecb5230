package server

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/network"
	"github.com/crisp-cri/crisp/oci"
)

// expectedMetrics are those whose descriptions critest requires, which have cAdvisor's names, and two
// more of cAdvisor.
const expectedMetrics = `
container_blkio_device_usage_total container_cpu_cfs_periods_total container_cpu_cfs_throttled_periods_total
container_cpu_cfs_throttled_seconds_total container_cpu_system_seconds_total container_cpu_usage_seconds_total
container_cpu_user_seconds_total container_file_descriptors container_fs_inodes_free container_fs_inodes_total
container_fs_limit_bytes container_fs_reads_bytes_total container_fs_reads_total container_fs_usage_bytes
container_fs_writes_bytes_total container_fs_writes_total container_hugetlb_max_usage_bytes container_hugetlb_usage_bytes
container_last_seen container_memory_cache container_memory_failcnt container_memory_failures_total
container_memory_kernel_usage container_memory_mapped_file container_memory_max_usage_bytes container_memory_rss
container_memory_swap container_memory_usage_bytes container_memory_working_set_bytes
container_network_receive_bytes_total container_network_receive_errors_total container_network_receive_packets_dropped_total
container_network_receive_packets_total container_network_transmit_bytes_total container_network_transmit_errors_total
container_network_transmit_packets_dropped_total container_network_transmit_packets_total container_oom_events_total
container_pressure_cpu_stalled_seconds_total container_pressure_cpu_waiting_seconds_total
container_pressure_io_stalled_seconds_total container_pressure_io_waiting_seconds_total
container_pressure_memory_stalled_seconds_total container_pressure_memory_waiting_seconds_total container_processes
container_sockets container_spec_cpu_period container_spec_cpu_quota container_spec_cpu_shares
container_spec_memory_limit_bytes container_spec_memory_reservation_limit_bytes container_spec_memory_swap_limit_bytes
container_start_time_seconds container_threads container_threads_max container_ulimits_soft
container_memory_total_active_file_bytes container_memory_total_inactive_file_bytes`

const psi = "some avg10=1.50 avg60=0.25 avg300=0.00 total=7000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5000000\n"

// cgroupTrees has the files of a cgroup of either version, with the same counters.
var cgroupTrees = map[string]map[string]string{
	"v1": {
		"cpuacct.usage": "9000000000\n", "cpuacct.stat": "user 600\nsystem 300\n",
		"cpu.stat":              "nr_periods 3\nnr_throttled 2\nthrottled_time 4000000000\n",
		"memory.stat":           "total_cache 500\ntotal_rss 300\ntotal_mapped_file 20\ntotal_inactive_file 400\ntotal_pgfault 7\ntotal_pgmajfault 1\ntotal_swap 30\n",
		"memory.usage_in_bytes": "1000\n", "memory.limit_in_bytes": "2000\n", "memory.memsw.limit_in_bytes": "2500\n",
		"memory.max_usage_in_bytes": "1500\n", "memory.kmem.usage_in_bytes": "50\n", "memory.failcnt": "12\n", "memory.soft_limit_in_bytes": "700\n",
		"blkio.throttle.io_service_bytes_recursive": "8:0 Read 11\n8:0 Write 22\nTotal 33\n",
		"blkio.throttle.io_serviced_recursive":      "8:0 Read 3\n8:0 Write 4\nTotal 7\n",
		"pids.current":                              "5\n", "pids.max": "100\n",
	},
	"v2": {
		"cpu.stat":       "usage_usec 9000000\nuser_usec 6000000\nsystem_usec 3000000\nnr_periods 3\nnr_throttled 2\nthrottled_usec 4000000\n",
		"memory.stat":    "file 500\nanon 300\nfile_mapped 20\ninactive_file 400\npgfault 7\npgmajfault 1\nkernel 50\n",
		"memory.current": "1000\n", "memory.max": "2000\n", "memory.peak": "1500\n", "memory.events": "max 12\n", "memory.low": "700\n",
		"memory.swap.current": "30\n", "memory.swap.max": "500\n",
		"io.stat":      "8:0 rbytes=11 wbytes=22 rios=3 wios=4\n",
		"pids.current": "5\n", "pids.max": "100\n",
	},
}

// countIn gives the machine's containers cgroups of that version with counters.
func (n *node) countIn(t testing.TB, version string) {
	t.Helper()
	make := func(files map[string]string) string {
		dir := t.TempDir()
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	// On a hybrid host v2 has the pressure.
	v2 := map[string]string{"cpu.pressure": psi, "memory.pressure": psi, "io.pressure": psi}
	if version == "v2" {
		maps.Copy(v2, cgroupTrees["v2"])
		n.machine.Cgroups(map[string]string{"": make(v2)})
		return
	}
	dir := make(cgroupTrees["v1"])
	n.machine.Cgroups(map[string]string{"cpu": dir, "cpuacct": dir, "memory": dir, "blkio": dir, "pids": dir, "": make(v2)})
}

// Every group of the statistics has its time and the kernel's numbers.
func TestStatsGroups(t *testing.T) {
	for version := range cgroupTrees {
		t.Run(version, func(t *testing.T) {
			n := newNode(t)
			n.countIn(t, version)
			config := pod("a")
			config.Linux.CgroupParent = "/" // the only parent that every machine has
			sb := n.run(t, config)
			id := n.begin(t, sb, forever("x"))
			resp, err := n.ContainerStats(t.Context(), &cri.ContainerStatsRequest{ContainerId: id})
			if err != nil {
				t.Fatal(err)
			}
			checkGroups(t, resp.Stats)
			pods, err := n.PodSandboxStats(t.Context(), &cri.PodSandboxStatsRequest{PodSandboxId: sb})
			if err != nil {
				t.Fatal(err)
			}
			linux := pods.Stats.Linux
			for group, at := range map[string]int64{
				"cpu": linux.Cpu.GetTimestamp(), "memory": linux.Memory.GetTimestamp(), "process": linux.Process.GetTimestamp(), "io": linux.Io.GetTimestamp(),
			} {
				if at <= 0 {
					t.Errorf("sandbox: group %s has no time", group)
				}
			}
			if len(linux.Containers) != 1 {
				t.Fatalf("sandbox: statistics of %d containers", len(linux.Containers))
			}
			checkGroups(t, linux.Containers[0])
		})
	}
}

// The kubelet's summary has those interfaces of a pod that are in the list.
func TestInterfaceUsage(t *testing.T) {
	got := interfaceUsage([]network.InterfaceStats{{Name: "net1", RxBytes: 1}, {Name: "eth0", RxBytes: 2, TxErrors: 3}})
	var names []string
	for _, i := range got.Interfaces {
		names = append(names, i.Name)
	}
	if d := got.DefaultInterface; got.Timestamp <= 0 || d.GetName() != "eth0" || d.GetRxBytes().GetValue() != 2 || d.GetTxErrors().GetValue() != 3 || !slices.Equal(names, []string{"net1", "eth0"}) {
		t.Errorf("usage is %v", got)
	}
}

// Available swap of 0 would mean that none is left.
func TestSwapWithoutLimit(t *testing.T) {
	if got := swapUsage(oci.Stats{}).SwapAvailableBytes; got != nil {
		t.Errorf("without a limit %v is available", got)
	}
	if got := swapUsage(oci.Stats{Swap: oci.SwapStats{Limited: true}}).SwapAvailableBytes; got == nil || got.Value != 0 {
		t.Errorf("where no swap is allowed %v is available", got)
	}
}

func checkGroups(t *testing.T, st *cri.ContainerStats) {
	t.Helper()
	for group, at := range map[string]int64{
		"cpu": st.Cpu.GetTimestamp(), "memory": st.Memory.GetTimestamp(), "swap": st.Swap.GetTimestamp(),
		"io": st.Io.GetTimestamp(), "writable layer": st.WritableLayer.GetTimestamp(),
	} {
		if at <= 0 {
			t.Errorf("group %s has no time", group)
		}
	}
	m := st.Memory
	got := []uint64{
		st.Cpu.UsageCoreNanoSeconds.GetValue(), m.UsageBytes.GetValue(), m.WorkingSetBytes.GetValue(), m.AvailableBytes.GetValue(), m.RssBytes.GetValue(),
		m.PageFaults.GetValue(), m.MajorPageFaults.GetValue(), st.Swap.SwapUsageBytes.GetValue(), st.Swap.SwapAvailableBytes.GetValue(),
		st.WritableLayer.UsedBytes.GetValue(), st.WritableLayer.InodesUsed.GetValue(),
	}
	if want := []uint64{9e9, 1000, 600, 1400, 300, 7, 1, 30, 470, 4096, 3}; !slices.Equal(got, want) {
		t.Errorf("numbers are %v, want %v", got, want)
	}
	if st.Cpu.UsageNanoCores == nil {
		t.Error("no nano cores")
	}
	for group, p := range map[string]*cri.PsiStats{"cpu": st.Cpu.Psi, "memory": m.Psi, "io": st.Io.Psi} {
		// CRI counts nanoseconds.
		if p.GetSome().GetTotal() != 7e9 || p.GetFull().GetTotal() != 5e9 || p.GetSome().GetAvg10() != 1.5 {
			t.Errorf("pressure of group %s: %v", group, p)
		}
	}
}

// A kernel without PSI has no pressure values; the IO group still exists.
func TestStatsWithoutPressure(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	n.machine.Cgroups(map[string]string{"memory": dir})
	id := n.begin(t, n.run(t, pod("a")), forever("x"))
	resp, err := n.ContainerStats(t.Context(), &cri.ContainerStatsRequest{ContainerId: id})
	if err != nil {
		t.Fatal(err)
	}
	if st := resp.Stats; st.Cpu.Psi != nil || st.Memory.Psi != nil || st.Io == nil || st.Io.Psi != nil || st.Io.Timestamp == 0 {
		t.Errorf("statistics are %v", st)
	}
}

// Without a limit the available memory is not reported: 0 would be read as "all is used".
func TestAvailableMemoryNeedsALimit(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	n.machine.Cgroups(map[string]string{"memory": dir})
	id := n.begin(t, n.run(t, pod("a")), forever("x"))
	for limit, available := range map[string]*cri.UInt64Value{"": nil, "9223372036854771712\n": nil, "1000\n": {Value: 0}, "1500\n": {Value: 500}} {
		for name, text := range map[string]string{"memory.usage_in_bytes": "1000\n", "memory.limit_in_bytes": limit} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		resp, err := n.ContainerStats(t.Context(), &cri.ContainerStatsRequest{ContainerId: id})
		if got := resp.GetStats().GetMemory().GetAvailableBytes(); err != nil || got.String() != available.String() || (got == nil) != (available == nil) {
			t.Errorf("with the limit %q there is available: %v, %v; want %v", limit, got, err, available)
		}
	}
}

// The metrics that critest requires are described, always the same, and have values with as many
// labels as keys.
func TestMetrics(t *testing.T) {
	for version := range cgroupTrees {
		t.Run(version, func(t *testing.T) { testMetrics(t, version) })
	}
}

func testMetrics(t *testing.T, version string) {
	n := newNode(t)
	n.countIn(t, version)
	keys := describedMetrics(t, n)
	for _, name := range strings.Fields(expectedMetrics) {
		if keys[name] == nil {
			t.Errorf("%s is not described", name)
		}
	}
	sb := n.run(t, pod("a"))
	config := forever("x")
	config.Linux.Resources.CpuPeriod, config.Linux.Resources.CpuQuota = 100_000, 50_000
	id := n.begin(t, sb, config)
	if now := describedMetrics(t, n); !maps.EqualFunc(now, keys, slices.Equal[[]string]) {
		t.Error("descriptors changed with what runs")
	}
	list, err := n.ListPodSandboxMetrics(t.Context(), &cri.ListPodSandboxMetricsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.PodMetrics) != 1 || list.PodMetrics[0].PodSandboxId != sb || len(list.PodMetrics[0].ContainerMetrics) != 1 ||
		list.PodMetrics[0].ContainerMetrics[0].ContainerId != id {
		t.Fatalf("metrics are %v", list.PodMetrics)
	}
	values := map[string]uint64{}
	for _, m := range slices.Concat(list.PodMetrics[0].Metrics, list.PodMetrics[0].ContainerMetrics[0].Metrics) {
		if len(m.LabelValues) != len(keys[m.Name]) {
			t.Errorf("%s has labels %v for %v", m.Name, m.LabelValues, keys[m.Name])
		}
		if _, again := values[m.Name]; !again {
			values[m.Name] = m.Value.GetValue()
		}
	}
	for _, name := range strings.Fields(expectedMetrics) {
		// A fake process has no limits and a fake pod no interfaces; the numbers of
		// huge pages depend on the machine's kernel.
		if _, ok := values[name]; !ok && !strings.HasPrefix(name, "container_network_") && !strings.HasPrefix(name, "container_hugetlb_") && name != "container_ulimits_soft" {
			t.Errorf("%s has no value", name)
		}
	}
	for name, want := range map[string]uint64{
		"container_cpu_usage_seconds_total": 9, "container_cpu_user_seconds_total": 6, "container_cpu_system_seconds_total": 3,
		"container_cpu_cfs_throttled_seconds_total": 4, "container_spec_cpu_quota": 50_000, "container_spec_cpu_shares": 512,
		"container_spec_memory_reservation_limit_bytes": 700, "container_memory_failcnt": 12, "container_memory_max_usage_bytes": 1500,
		"container_pressure_cpu_waiting_seconds_total": 7, "container_pressure_io_stalled_seconds_total": 5,
		"container_blkio_device_usage_total": 11, "container_threads": 5, "container_threads_max": 100,
	} {
		if values[name] != want {
			t.Errorf("%s is %d, want %d", name, values[name], want)
		}
	}
}

// describedMetrics returns the label keys of each metric.
func describedMetrics(t *testing.T, n *node) map[string][]string {
	t.Helper()
	resp, err := n.ListMetricDescriptors(t.Context(), &cri.ListMetricDescriptorsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string][]string{}
	for _, d := range resp.Descriptors {
		keys[d.Name] = d.LabelKeys
	}
	return keys
}

// Every metric has as many labels as it describes, also those without values on a fake machine.
func TestMetricLabels(t *testing.T) {
	s := &sample{
		limits:    &cri.LinuxContainerResources{CpuQuota: 1},
		processes: processCount{maxFiles: 1},
		stats: oci.Stats{
			CPU: oci.CPUStats{PSI: new(oci.PSI)}, Memory: oci.MemoryStats{PSI: new(oci.PSI)}, IO: oci.IOStats{PSI: new(oci.PSI)},
			HugePages: []oci.HugePageStats{{Size: "2MB", Usage: 2 << 20, Max: 4 << 20}},
		},
		disks: make([]disk, 1),
		net:   make([]network.InterfaceStats, 1),
	}
	for _, m := range slices.Concat(containerMetrics, sandboxMetrics) {
		points := m.values(s)
		if len(points) == 0 {
			t.Errorf("%s has no value", m.name)
		}
		for _, p := range points {
			if len(p.labels) != len(m.labels) {
				t.Errorf("%s has labels %v for %v", m.name, p.labels, m.labels)
			}
		}
	}
}
