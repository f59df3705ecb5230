package oci

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/procstat"
	"github.com/crisp-cri/crisp/test/testenv"
)

func TestSysctlPath(t *testing.T) {
	for name, want := range map[string]string{
		"net.ipv4.ip_forward":               "net/ipv4/ip_forward",
		"net/ipv4/conf/eth0.100/forwarding": "net/ipv4/conf/eth0.100/forwarding",
		"net.ipv4.conf.eth0/100.forwarding": "net/ipv4/conf/eth0.100/forwarding",
		"kernel.shm_rmid_forced":            "kernel/shm_rmid_forced",
		"single":                            "single",
	} {
		if got := sysctlPath(name); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

// Sysctls of a device wait for the device; others do not, nor do invalid paths.
func TestDeviceSysctls(t *testing.T) {
	devices, others := DeviceSysctls(map[string]string{
		"net.ipv4.conf.eth0.arp_ignore": "1", "net/ipv6/neigh/eth0.100/gc_stale_time": "2", "net.mpls.conf.net1.input": "3",
		"net.ipv4.conf.all.arp_ignore": "4", "net.ipv4.conf.default.arp_ignore": "5", "net.ipv4.neigh.lo.gc_stale_time": "6",
		"net.ipv4.ip_forward": "7", "kernel.sem": "8", "net/ipv4/conf/../ip_forward": "9", "net/ipv4/conf/eth0/..": "10", "net.ipv4.conf.eth0": "11",
	})
	if diff := cmp.Diff(map[string]string{
		"net/ipv4/conf/eth0/arp_ignore": "1", "net/ipv6/neigh/eth0.100/gc_stale_time": "2", "net/mpls/conf/net1/input": "3",
	}, devices); diff != "" {
		t.Error(diff)
	}
	if len(others) != 8 || others["net/ipv4/conf/../ip_forward"] != "9" || others["net.ipv4.conf.all.arp_ignore"] != "4" {
		t.Errorf("the others are %v", others)
	}
}

// A sysctl without a namespace would be set for the whole machine.
func TestCheckSysctls(t *testing.T) {
	host := SandboxConfig{HostNetwork: true, HostIPC: true}
	for _, tt := range []struct {
		cfg  SandboxConfig
		name string
		ok   bool
	}{
		{SandboxConfig{}, "net.ipv4.ip_forward", true},
		{SandboxConfig{}, "net/ipv4/ip_forward", true},
		{SandboxConfig{}, "kernel.shmmax", true},
		{SandboxConfig{}, "kernel.msgmax", true},
		{SandboxConfig{}, "kernel.sem", true},
		{SandboxConfig{}, "fs.mqueue.msg_max", true},
		{SandboxConfig{}, "kernel.domainname", true},
		{SandboxConfig{}, "kernel.hostname", false},
		{SandboxConfig{}, "vm.swappiness", false},
		{SandboxConfig{}, "kernel.core_pattern", false},
		{SandboxConfig{}, "net/../kernel/core_pattern", false},
		{SandboxConfig{}, "net..kernel", false},
		{SandboxConfig{}, "", false},
		{SandboxConfig{}, "net/", false},
		{host, "net.ipv4.ip_forward", false},
		{host, "kernel.shmmax", false},
		{host, "kernel.domainname", false},
		{SandboxConfig{HostIPC: true}, "net.ipv4.ip_forward", true},
		{SandboxConfig{HostNetwork: true}, "kernel.shmmax", true},
	} {
		tt.cfg.Sysctls = map[string]string{tt.name: "1"}
		err := checkSysctls(tt.cfg)
		if tt.ok && err != nil {
			t.Errorf("%q: %v", tt.name, err)
		}
		if !tt.ok && (fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), `"`+tt.name+`"`)) {
			t.Errorf("%q with %+v: got %v, want invalid with its name", tt.name, tt.cfg, err)
		}
	}
}

func TestCheckCgroup(t *testing.T) {
	for _, tt := range []struct {
		parent  string
		systemd bool
		ok      bool
	}{
		{"", false, true}, {"", true, true},
		{"/kubepods/pod1", false, true}, {"/kubepods/pod1", true, false},
		{"kubepods-pod1.slice", true, true}, {"kubepods-pod1.slice", false, false},
		{"/kubepods.slice/kubepods-pod1.slice", true, false},
		{"relative", false, false}, {"/a/../b", false, false}, {"/a/", false, false},
	} {
		if err := checkCgroup(tt.parent, tt.systemd); (err == nil) != tt.ok || !tt.ok && fault.KindOf(err) != fault.Invalid {
			t.Errorf("%q, systemd %v: %v", tt.parent, tt.systemd, err)
		}
	}
}

func TestAlive(t *testing.T) {
	self, err := procstat.Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !alive(os.Getpid(), self.StartTime) {
		t.Error("the test's own process is not alive")
	} else if alive(os.Getpid(), self.StartTime+1) {
		t.Error("a PID without a start time is taken for a live process")
	}
}

// write writes the files of a cgroup into a directory, and returns that.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestStatsV2(t *testing.T) {
	psi := "some avg10=1.50 avg60=0.25 avg300=0.00 total=77\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n"
	dir := write(t, map[string]string{
		"cpu.stat":            "usage_usec 10\nuser_usec 6\nsystem_usec 4\nnr_periods 3\nnr_throttled 2\nthrottled_usec 9\n",
		"cpu.pressure":        psi,
		"memory.current":      "1000\n",
		"memory.max":          "2000\n",
		"memory.peak":         "1500\n",
		"memory.low":          "700\n",
		"memory.pressure":     "some avg10=0.00 avg60=0.00 avg300=0.00 total=3\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=2\n",
		"io.pressure":         "some avg10=0.00 avg60=0.00 avg300=9.99 total=4\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
		"memory.stat":         "anon 300\nfile 500\nkernel 50\nfile_mapped 20\ninactive_file 400\nactive_file 90\npgfault 7\npgmajfault 1\n",
		"memory.events":       "low 0\nmax 12\noom 0\n",
		"memory.swap.current": "30\n",
		"memory.swap.max":     "max\n",
		"io.stat":             "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n7:0 \n8:16 rbytes=10 wbytes=20 rios=30 wios=40\n",
		"pids.current":        "5\n",
		"pids.max":            "max\n",
	})
	got, _, err := readStats(map[string]string{"": dir}, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	want := Stats{
		CPU: CPUStats{
			UsageNs: 10000, UserNs: 6000, SystemNs: 4000, Periods: 3, ThrottledPeriods: 2, ThrottledNs: 9000,
			PSI: &PSI{Some: PSIData{Total: 77, Avg10: 1.5, Avg60: 0.25}, Full: PSIData{Total: 5}},
		},
		Memory: MemoryStats{
			Usage: 1000, WorkingSet: 600, ActiveFile: 90, InactiveFile: 400, RSS: 300, Cache: 500, MappedFile: 20, Kernel: 50,
			Limit: 2000, Available: 1400, Peak: 1500, FailCount: 12, PageFaults: 7, MajorPageFaults: 1, Reservation: 700,
			PSI: &PSI{Some: PSIData{Total: 3}, Full: PSIData{Total: 2}},
		},
		Swap: SwapStats{Usage: 30},
		IO: IOStats{
			Devices: []DeviceIO{{"8:0", 1, 2, 3, 4}, {"8:16", 10, 20, 30, 40}},
			PSI:     &PSI{Some: PSIData{Total: 4, Avg300: 9.99}, Full: PSIData{Total: 1}},
		},
		Pids: PidStats{Current: 5},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Stats{}, "At")); diff != "" {
		t.Error(diff)
	}
}

// No swap is allowed is not the same as no limit.
func TestSwapLimitV2(t *testing.T) {
	for text, want := range map[string]SwapStats{
		"0\n":   {Usage: 30, Limited: true},
		"max\n": {Usage: 30},
		"50\n":  {Usage: 30, Limited: true, Limit: 50, Available: 20},
	} {
		dir := write(t, map[string]string{"memory.swap.current": "30\n", "memory.swap.max": text})
		if got, _, err := readStats(map[string]string{"": dir}, nil, false); got.Swap != want || err != nil {
			t.Errorf("%q: %+v (err %v), want %+v", text, got.Swap, err, want)
		}
	}
}

func TestStatsV1(t *testing.T) {
	dir := write(t, map[string]string{
		"cpuacct.usage": "10000\n",
		"cpuacct.stat":  "user 2\nsystem 1\n",
		"cpu.stat":      "nr_periods 3\nnr_throttled 2\nthrottled_time 9000\n",
		"memory.stat": "cache 1\nrss 1\ntotal_cache 500\ntotal_rss 300\ntotal_mapped_file 20\ntotal_inactive_file 400\ntotal_active_file 90\n" +
			"total_pgfault 7\ntotal_pgmajfault 1\ntotal_swap 30\n",
		"memory.usage_in_bytes":                     "1000\n",
		"memory.limit_in_bytes":                     "2000\n",
		"memory.memsw.limit_in_bytes":               "2500\n",
		"memory.max_usage_in_bytes":                 "1500\n",
		"memory.soft_limit_in_bytes":                "700\n",
		"memory.kmem.usage_in_bytes":                "50\n",
		"memory.failcnt":                            "12\n",
		"blkio.throttle.io_service_bytes_recursive": "8:0 Read 1\n8:0 Write 2\n8:16 Read 10\n8:16 Write 20\n8:0 Sync 3\n8:0 Discard 0\n8:0 Total 3\nTotal 33\n",
		"blkio.throttle.io_serviced_recursive":      "8:0 Read 3\n8:0 Write 4\nTotal 7\n",
		"pids.current":                              "5\n",
		"pids.max":                                  "100\n",
	})
	// On a hybrid host the v2 hierarchy has the pressure, and v1's have the rest.
	v2 := write(t, map[string]string{
		"cpu.stat":     "usage_usec 99\n",
		"cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=8\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=6\n",
	})
	dirs := map[string]string{"cpu": dir, "cpuacct": dir, "memory": dir, "blkio": dir, "pids": dir, "": v2}
	got, _, err := readStats(dirs, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	want := Stats{
		CPU: CPUStats{
			UsageNs: 10000, UserNs: 2e7, SystemNs: 1e7, Periods: 3, ThrottledPeriods: 2, ThrottledNs: 9000,
			PSI: &PSI{Some: PSIData{Total: 8}, Full: PSIData{Total: 6}},
		},
		Memory: MemoryStats{
			Usage: 1000, WorkingSet: 600, ActiveFile: 90, InactiveFile: 400, RSS: 300, Cache: 500, MappedFile: 20, Kernel: 50,
			Limit: 2000, Available: 1400, Peak: 1500, FailCount: 12, PageFaults: 7, MajorPageFaults: 1, Reservation: 700,
		},
		Swap: SwapStats{Usage: 30, Limited: true, Limit: 500, Available: 470},
		IO:   IOStats{Devices: []DeviceIO{{"8:0", 1, 2, 3, 4}, {"8:16", 10, 20, 0, 0}}},
		Pids: PidStats{Current: 5, Limit: 100},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Stats{}, "At")); diff != "" {
		t.Error(diff)
	}
	// Without a limit, v1 reports the largest number of pages.
	if err := os.WriteFile(filepath.Join(dir, "memory.limit_in_bytes"), []byte("9223372036854771712\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _, err = readStats(dirs, nil, true); got.Memory.Limit != 0 || got.Memory.Available != 0 || err != nil {
		t.Errorf("limit %d, available %d (err %v)", got.Memory.Limit, got.Memory.Available, err)
	}
}

// Huge pages are counted by size, and not at all without the controller.
func TestStatsOfHugePages(t *testing.T) {
	sizes := []string{"2MB", "1GB"}
	v1 := write(t, map[string]string{
		"hugetlb.2MB.usage_in_bytes": "2097152\n", "hugetlb.2MB.max_usage_in_bytes": "4194304\n",
		"hugetlb.1GB.usage_in_bytes": "0\n", "hugetlb.1GB.max_usage_in_bytes": "0\n",
	})
	v2 := write(t, map[string]string{"hugetlb.2MB.current": "2097152\n", "hugetlb.1GB.current": "0\n"})
	in := func(dirs map[string]string, read func(*groupFiles, []string) []HugePageStats, sizes []string) []HugePageStats {
		g := openGroup(dirs, nil)
		defer g.close()
		return read(g, sizes)
	}
	for name, c := range map[string]struct{ got, want []HugePageStats }{
		"v1":                 {in(map[string]string{"hugetlb": v1}, hugePagesV1, sizes), []HugePageStats{{"2MB", 2 << 20, 4 << 20}, {"1GB", 0, 0}}},
		"v2":                 {in(map[string]string{"": v2}, hugePagesV2, sizes), []HugePageStats{{"2MB", 2 << 20, 2 << 20}, {"1GB", 0, 0}}},
		"no controller":      {in(map[string]string{"": t.TempDir()}, hugePagesV2, sizes), nil},
		"no such hierarchy":  {in(nil, hugePagesV1, sizes), nil},
		"no huge pages here": {in(map[string]string{"": v2}, hugePagesV2, nil), nil},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// The counters of a cgroup that has just been removed are an error, not zeros.
func TestStatsOfNothing(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "gone")
	for _, dirs := range []map[string]string{{"": gone}, {"memory": gone, "": t.TempDir()}} {
		if _, _, err := readStats(dirs, nil, true); !os.IsNotExist(err) {
			t.Errorf("got %v", err)
		}
	}
}

// Nor are those of a cgroup that is removed while it is read. The reader waits for a writer of the
// first file, and of the second unless it has gone by then.
func TestStatsOfWhatGoes(t *testing.T) {
	cpu, memory := t.TempDir(), filepath.Join(t.TempDir(), "memory")
	usage, stat := filepath.Join(cpu, "cpuacct.usage"), filepath.Join(memory+".gone", "memory.stat")
	err := errors.Join(os.Mkdir(memory, 0o700), unix.Mkfifo(usage, 0o600), unix.Mkfifo(filepath.Join(memory, "memory.stat"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, _, err := readStats(map[string]string{"cpuacct": cpu, "memory": memory}, nil, false)
		result <- err
	}()
	begun, err := os.OpenFile(usage, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer begun.Close()
	if err := os.Rename(memory, memory+".gone"); err != nil {
		t.Fatal(err)
	}
	rest, err := os.OpenFile(stat, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer rest.Close()
	if err := <-result; !os.IsNotExist(err) {
		t.Errorf("got %v", err)
	}
}

// removeCgroups leaves a cgroup alone that is not named after the container: it may be the
// root of the hierarchy.
func TestRemoveCgroupsSparesOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "shared")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := removeCgroups("id", map[string]string{"": dir, "memory": filepath.Dir(dir)}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	own := filepath.Join(dir, "crisp-id.scope")
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := removeCgroups("id", map[string]string{"": own}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(own); !os.IsNotExist(err) {
		t.Errorf("still there (err %v)", err)
	}
}

// A cgroup made with the cgroupfs driver is removed, with those below it, after the change
// to systemd's.
func TestRemoveCgroupOfOtherDriver(t *testing.T) {
	testenv.NeedRoot(t, "it makes cgroups")
	name := ownCgroup(NewID(), false)
	if err := (&kernel{}).Cgroup(name, true); err != nil {
		t.Fatal(err)
	}
	dirs, err := cgroupDirs(name)
	if err != nil {
		t.Fatal(err)
	}
	defer (&kernel{}).Cgroup(name, false)
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(dir, "container"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	k := &kernel{systemd: true}
	if err := k.Cgroup(name, false); err != nil {
		t.Error(err)
	}
	if anyExists(dirs) {
		t.Errorf("%s is still there", name)
	}
	if err := (&kernel{}).Cgroup(ownCgroup(NewID(), true), false); err != nil {
		t.Errorf("no such slice: %v", err)
	}
	if err := (&kernel{}).removeCgroupBase(); err != nil {
		t.Error(err)
	}
}
