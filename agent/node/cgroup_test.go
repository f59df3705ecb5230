package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/systemd"
	v1 "k8s.io/api/core/v1"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/test/testenv"
)

func TestNames(t *testing.T) {
	fs, sd := &CgroupTree{root: []string{"my-root"}}, &CgroupTree{root: []string{"my-root"}, systemd: true}
	for _, test := range []struct {
		class           v1.PodQOSClass
		cgroup, systemd string
	}{
		{v1.PodQOSGuaranteed, "/my-root/kubepods/podu-1", "/my_root.slice/my_root-kubepods.slice/my_root-kubepods-podu_1.slice"},
		{v1.PodQOSBurstable, "/my-root/kubepods/burstable/podu-1", "/my_root.slice/my_root-kubepods.slice/my_root-kubepods-burstable.slice/my_root-kubepods-burstable-podu_1.slice"},
		{v1.PodQOSBestEffort, "/my-root/kubepods/besteffort/podu-1", "/my_root.slice/my_root-kubepods.slice/my_root-kubepods-besteffort.slice/my_root-kubepods-besteffort-podu_1.slice"},
	} {
		if got := fs.Parent("u-1", test.class); got != test.cgroup {
			t.Errorf("cgroupfs: %s, want %s", got, test.cgroup)
		}
		if got := sd.Parent("u-1", test.class); got != test.systemd {
			t.Errorf("systemd: %s, want %s", got, test.systemd)
		}
	}
}

// A pod's cgroup gets its limits on this kernel, can be changed, and is removed.
func TestTree(t *testing.T) {
	testenv.NeedRoot(t, "it makes cgroups")
	if os.Getenv(withHugetlb) != "" {
		mountHugetlb(t)
	}
	for _, driver := range []string{"cgroupfs", "systemd"} {
		t.Run(driver, func(t *testing.T) {
			if driver == "systemd" && !systemd.IsRunningSystemd() {
				t.Skip("needs systemd")
			}
			testTree(t, fmt.Sprintf("crisptest%d", os.Getpid()), driver == "systemd")
		})
	}
}

func testTree(t *testing.T, root string, systemd bool) {
	tree, err := OpenCgroups(root, systemd, CgroupLimits{Shares: 1024, Memory: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, names := range [][]string{tree.class(v1.PodQOSBurstable), tree.class(v1.PodQOSBestEffort), tree.class(v1.PodQOSGuaranteed), {root}} {
			if m, err := tree.manager(names, CgroupLimits{}); err == nil {
				m.Destroy()
			}
			if tree.exists(names) {
				t.Errorf("cgroup %v stays", names)
			}
		}
	})
	if used, limit, err := tree.Memory(); err != nil || used > limit || limit != 1<<30 {
		t.Errorf("pods use %d of %d, %v", used, limit, err)
	}
	limits := CgroupLimits{Shares: 512, Quota: 50_000, Period: podspec.CPUPeriod, Memory: 64 << 20, Pids: 100}
	for range 2 {
		if err := tree.Make("u1", v1.PodQOSBurstable, limits); err != nil {
			t.Fatal(err)
		}
	}
	names := tree.pod("u1", v1.PodQOSBurstable)
	weight := fmt.Sprint(cgroups.ConvertCPUSharesToCgroupV2Value(512))
	checkCgroup(t, tree, names, map[string]string{"cpu.shares": "512", "cpu.cfs_quota_us": "50000", "memory.limit_in_bytes": "67108864", "pids.max": "100"},
		map[string]string{"cpu.weight": weight, "cpu.max": "50000 100000", "memory.max": "67108864", "pids.max": "100"})
	// A resize.
	limits.Memory, limits.Quota = 128<<20, 0
	if err := tree.Make("u1", v1.PodQOSBurstable, limits); err != nil {
		t.Fatal(err)
	}
	checkCgroup(t, tree, names, map[string]string{"cpu.cfs_quota_us": "-1", "memory.limit_in_bytes": "134217728"}, map[string]string{"cpu.max": "max 100000", "memory.max": "134217728"})
	if err := tree.SetBurstableShares(1500); err != nil {
		t.Fatal(err)
	}
	testHugePages(t, tree, names, limits)
	if got := tree.uids(); len(got) != 1 || got[0] != "u1" {
		t.Errorf("pods %v, want u1", got)
	}
	// It is too new to count as a leftover.
	if err := tree.Sweep(nil); err != nil || !tree.exists(names) {
		t.Errorf("swept: %v", err)
	}
	next, err := OpenCgroups(root, systemd, CgroupLimits{Shares: 1024}) // another agent
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := next.Remove("u1"); err != nil {
			t.Fatal(err)
		}
	}
	if tree.exists(names) {
		t.Error("the cgroup stays")
	}
}

// A sweep keeps the cgroups of known pods, however old and idle they are. The UIDs of pods from the
// API contain "-", which names of slices cannot.
func TestSweepKeepsKnown(t *testing.T) {
	testenv.NeedRoot(t, "it makes cgroups")
	for driver, tree := range map[string]*CgroupTree{"cgroupfs": {}, "systemd": {systemd: true}} {
		t.Run(driver, func(t *testing.T) {
			tree.root = []string{fmt.Sprintf("crisptestsweep%d", os.Getpid())}
			const uid = "0b8ba9a4-6a0c-4b0e-9d3c-3f6b0d7c5d11"
			names := tree.pod(uid, v1.PodQOSGuaranteed)
			dir := tree.dirs(names)[0]
			t.Cleanup(func() {
				for path := dir; path != tree.dirs(nil)[0]; path = filepath.Dir(path) {
					if err := os.Remove(path); err != nil {
						t.Error(err)
					}
				}
			})
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			old := time.Now().Add(-2 * orphanAge)
			if err := os.Chtimes(dir, old, old); err != nil {
				t.Fatal(err)
			}
			if tree.inUse(uid) {
				t.Fatal("the cgroup is in use: the test shows nothing")
			}
			if err := tree.Sweep(map[string]bool{uid: true}); err != nil || !tree.exists(names) {
				t.Errorf("error %v, the cgroup exists: %v", err, tree.exists(names))
			}
		})
	}
}

// testHugePages limits the huge pages of the pod u1, whose cgroup has these names.
func testHugePages(t *testing.T, tree *CgroupTree, names []string, limits CgroupLimits) {
	limits.Pages = podspec.Pages{"2MB": 4 << 20}
	for range 2 {
		if err := tree.Make("u1", v1.PodQOSBurstable, limits); err != nil {
			t.Fatal(err)
		}
	}
	sizes := cgroups.HugePageSizes()
	if !hugetlb(t) || !slices.Contains(sizes, "2MB") {
		t.Log("huge pages are not limited: the kernel has none, or no controller is mounted")
		return
	}
	for _, size := range sizes {
		limit := func(to string) (v1, v2 map[string]string) {
			return map[string]string{"hugetlb." + size + ".limit_in_bytes": to}, map[string]string{"hugetlb." + size + ".max": to}
		}
		first, second := limit(map[bool]string{true: "4194304", false: "0"}[size == "2MB"])
		checkCgroup(t, tree, names, first, second)
		for _, class := range classes {
			first, second := limit("4611686018427387904")
			checkCgroup(t, tree, tree.class(class), first, second)
		}
	}
	t.Log("huge pages were limited")
}

// checkCgroup compares the files of a cgroup with those wanted for the version in use.
func checkCgroup(t *testing.T, tree *CgroupTree, names []string, v1, v2 map[string]string) {
	t.Helper()
	want := v1
	if cgroups.IsCgroup2UnifiedMode() {
		want = v2
	}
	for file, value := range want {
		got := ""
		for _, dir := range tree.dirs(names) {
			if data, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
				got = strings.TrimSpace(string(data))
			}
		}
		if got != value {
			t.Errorf("%s is %q, want %q", file, got, value)
		}
	}
}
