package oci

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func ptr[T any](v T) *T { return &v }

// The status has what the kernel enforces, and in the form of the request if that is
// equivalent.
func TestReadResources(t *testing.T) {
	asked := &specs.LinuxResources{
		CPU:            &specs.LinuxCPU{Shares: ptr(uint64(512)), Quota: ptr(int64(20000)), Period: ptr(uint64(100000)), Cpus: "0,1"},
		Memory:         &specs.LinuxMemory{Limit: ptr(int64(1_000_000_000)), Swap: ptr(int64(2_000_000_000))},
		HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 4 << 20}},
	}
	v1 := map[string]string{
		"memory.limit_in_bytes": "999997440\n", "memory.memsw.limit_in_bytes": "1999998976\n",
		"cpu.shares": "512\n", "cpu.cfs_quota_us": "20000\n", "cpu.cfs_period_us": "100000\n", "cpuset.cpus": "0-1\n",
		"hugetlb.2MB.limit_in_bytes": "4194304\n",
	}
	v2 := map[string]string{
		"memory.max": "999997440\n", "memory.swap.max": "1000001536\n", "cpu.weight": "59\n", "cpu.max": "20000 100000\n", "cpuset.cpus": "0-1\n",
		"hugetlb.2MB.max": "4194304\n", "memory.high": "499998720\n", "io.weight": "default 100\n8:0 200\n",
	}
	want := &specs.LinuxResources{
		CPU:            &specs.LinuxCPU{Shares: ptr(uint64(512)), Quota: ptr(int64(20000)), Period: ptr(uint64(100000)), Cpus: "0-1"},
		Memory:         asked.Memory,
		HugepageLimits: asked.HugepageLimits,
	}
	if diff := cmp.Diff(want, readResources(v1Dirs(write(t, v1)), asked)); diff != "" {
		t.Errorf("v1: %s", diff)
	}
	unified := *asked
	unified.Unified = map[string]string{"memory.high": "500000000", "io.weight": "8:0 200"}
	wantUnified := *want
	wantUnified.Unified = unified.Unified
	if diff := cmp.Diff(&wantUnified, readResources(map[string]string{"": write(t, v2)}, &unified)); diff != "" {
		t.Errorf("v2: %s", diff)
	}
}

// A change by another program is shown.
func TestReadResourcesChanged(t *testing.T) {
	asked := &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Shares: ptr(uint64(512)), Quota: ptr(int64(20000))},
		Memory: &specs.LinuxMemory{Limit: ptr(int64(64 << 20))},
	}
	v1 := v1Dirs(write(t, map[string]string{
		"memory.limit_in_bytes": "33554432\n", "cpu.shares": "256\n", "cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "50000\n",
	}))
	v2 := map[string]string{"": write(t, map[string]string{"memory.max": "33554432\n", "cpu.weight": "35\n", "cpu.max": "max 50000\n"})}
	for name, dirs := range map[string]map[string]string{"v1": v1, "v2": v2} {
		got := readResources(dirs, asked)
		if got.CPU.Shares == nil || *got.CPU.Shares < 240 || *got.CPU.Shares > 260 {
			t.Errorf("%s: shares %v", name, got.CPU.Shares)
		}
		got.CPU.Shares = nil
		want := &specs.LinuxResources{
			CPU:    &specs.LinuxCPU{Quota: ptr(int64(-1)), Period: ptr(uint64(50000))},
			Memory: &specs.LinuxMemory{Limit: ptr(int64(32 << 20))},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// The kernel's defaults are not shown as limits.
func TestReadResourcesUnlimited(t *testing.T) {
	v1 := v1Dirs(write(t, map[string]string{
		"memory.limit_in_bytes": "9223372036854771712\n", "memory.memsw.limit_in_bytes": "9223372036854771712\n",
		"cpu.shares": "1024\n", "cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n", "cpuset.cpus": "0-3\n",
	}))
	v2 := map[string]string{"": write(t, map[string]string{
		"memory.max": "max\n", "memory.swap.max": "max\n", "cpu.weight": "100\n", "cpu.max": "max 100000\n", "cpuset.cpus": "\n",
	})}
	want := &specs.LinuxResources{CPU: &specs.LinuxCPU{}, Memory: &specs.LinuxMemory{}}
	for name, dirs := range map[string]map[string]string{"v1": v1, "v2": v2} {
		if diff := cmp.Diff(want, readResources(dirs, &specs.LinuxResources{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	gone := filepath.Join(t.TempDir(), "gone")
	for _, dirs := range []map[string]string{{"": gone}, {"memory": gone, "": os.TempDir()}} {
		if got := readResources(dirs, &specs.LinuxResources{}); got != nil {
			t.Errorf("resources of a removed cgroup: %v", got)
		}
	}
}

// v1Dirs returns the cgroup directories of a container, all controllers in dir.
func v1Dirs(dir string) map[string]string {
	return map[string]string{"memory": dir, "cpu": dir, "cpuset": dir, "hugetlb": dir, "": os.TempDir()}
}

// systemd rounds a quota up to whole percents of a CPU. The status has what was requested,
// or the kubelet would wait forever for its resize.
func TestReadResourcesOfScope(t *testing.T) {
	scope := filepath.Join(t.TempDir(), "crisp-x.scope")
	if err := os.Mkdir(scope, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		asked, kernel, want int64
	}{
		{12345, 13000, 12345},
		{12000, 12000, 12000},
		{1, 1000, 1},
		{12345, 14000, 14000}, // set by another program
		{12345, 12000, 12000},
	} {
		if err := os.WriteFile(filepath.Join(scope, "cpu.max"), fmt.Appendf(nil, "%d 100000\n", c.kernel), 0o644); err != nil {
			t.Fatal(err)
		}
		got := readResources(map[string]string{"": scope}, &specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: &c.asked, Period: ptr(uint64(100000))}})
		if *got.CPU.Quota != c.want {
			t.Errorf("request %d, kernel %d: reported %d, want %d", c.asked, c.kernel, *got.CPU.Quota, c.want)
		}
	}
}
