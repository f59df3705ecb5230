package node

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/test/testenv"
)

// Each version of the controller has its own files, and without the controller nothing is written.
// TestTree covers the kernel's part.
func TestWritePages(t *testing.T) {
	cgroups.TestMode = true
	t.Cleanup(func() { cgroups.TestMode = false })
	for _, test := range []struct {
		name        string
		unified     bool
		controllers string
		want        map[string]string
	}{
		{"v1", false, "", map[string]string{
			"hugetlb.2MB.limit_in_bytes": "4194304", "hugetlb.2MB.rsvd.limit_in_bytes": "4194304", "hugetlb.1GB.limit_in_bytes": "0", "hugetlb.1GB.rsvd.limit_in_bytes": "0"}},
		{"v2", true, "cpu hugetlb memory\n", map[string]string{
			"hugetlb.2MB.max": "4194304", "hugetlb.2MB.rsvd.max": "4194304", "hugetlb.1GB.max": "0", "hugetlb.1GB.rsvd.max": "0"}},
		{"v2 without the controller", true, "cpu memory\n", map[string]string{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if test.unified {
				if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte(test.controllers), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := writePages(dir, test.unified, []string{"1GB", "2MB"}, podspec.Pages{"2MB": 4 << 20, "16MB": 16 << 20}); err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			files, err := filepath.Glob(filepath.Join(dir, "hugetlb.*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				data, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				got[filepath.Base(file)] = string(data)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if err := writePages("", false, []string{"2MB"}, nil); err != nil {
		t.Errorf("v1 without the controller: %v", err)
	}
	if err := writePages(filepath.Join(t.TempDir(), "away"), true, []string{"2MB"}, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a cgroup that is not there: %v", err)
	}
}

// withHugetlb is set for a TestTree that runs in its own mount namespace, where it mounts the
// controller.
const withHugetlb = "CRISP_TEST_HUGETLB"

// A v1 kernel may have the controller unmounted, or in the unified hierarchy beside the v1 ones.
func TestTreeHugetlb(t *testing.T) {
	testenv.NeedRoot(t, "it makes cgroups")
	switch {
	case cgroups.IsCgroup2UnifiedMode():
		t.Skip("TestTree does the same on cgroup v2")
	case hugetlb(t):
		t.Skip("TestTree does the same where the controller is mounted")
	case os.Getenv(withHugetlb) != "":
		t.Fatal("the controller is not mounted")
	}
	testenv.Hierarchies(t, true)
	t.Cleanup(func() { endHugetlb(t) })
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestTree$", "-test.v")
	cmd.Env = append(os.Environ(), withHugetlb+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	switch text := string(out); {
	case strings.Contains(text, "another hierarchy has the controller"):
		unifiedHugetlb(t)
	case err != nil || !strings.Contains(text, "huge pages were limited"):
		t.Errorf("%v\n%s", err, text)
	}
}

// endHugetlb ends a hierarchy with the controller. It outlives its mount if cgroups that were removed
// last were still there, and ends when it is unmounted once more.
func endHugetlb(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for range 100 {
		text, err := os.ReadFile("/proc/self/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), ":hugetlb:") {
			return
		}
		if err := unix.Mount("cgroup", dir, "cgroup", 0, "hugetlb"); err != nil {
			t.Fatal(err)
		}
		if err := unix.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Error("a hierarchy with the controller is left")
}

// unifiedHugetlb writes limits into a cgroup of the unified hierarchy beside v1's.
func unifiedHugetlb(t *testing.T) {
	t.Helper()
	const root = "/sys/fs/cgroup/unified"
	if data, err := os.ReadFile(root + "/cgroup.subtree_control"); err != nil || !strings.Contains(string(data), "hugetlb") {
		t.Skipf("needs the hugetlb controller, which neither v1 nor %s has: %q, %v", root, data, err)
	}
	dir, err := os.MkdirTemp(root, "crisptest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	if err := writePages(dir, true, cgroups.HugePageSizes(), podspec.Pages{"2MB": 4 << 20, "1GB": unbounded}); err != nil {
		t.Fatal(err)
	}
	for _, size := range cgroups.HugePageSizes() {
		file, want := "hugetlb."+size+".max", map[string]string{"2MB": "4194304", "1GB": "4611686018427387904"}[size]
		if want == "" {
			want = "0"
		}
		if data, err := os.ReadFile(filepath.Join(dir, file)); err != nil || strings.TrimSpace(string(data)) != want {
			t.Errorf("%s is %q, %v, want %s", file, data, err, want)
		}
	}
}

// mountHugetlb mounts a directory over that of the cgroups, with the previous hierarchies and
// hugetlb. The mounts end with the process.
func mountHugetlb(t *testing.T) {
	t.Helper()
	const at = "/sys/fs/cgroup"
	dir, err := os.MkdirTemp("", "crisp-cgroup")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Unmount(dir, unix.MNT_DETACH) // if it was not moved
		os.Remove(dir)
	})
	try := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	try(unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"))
	entries, err := os.ReadDir(at)
	try(err)
	for _, e := range entries {
		if e.IsDir() {
			try(os.Mkdir(filepath.Join(dir, e.Name()), 0o755))
			try(unix.Mount(filepath.Join(at, e.Name()), filepath.Join(dir, e.Name()), "", unix.MS_BIND, ""))
		}
	}
	try(os.Mkdir(filepath.Join(dir, "hugetlb"), 0o755))
	if err := unix.Mount("cgroup", filepath.Join(dir, "hugetlb"), "cgroup", 0, "hugetlb"); err != nil {
		t.Skipf("another hierarchy has the controller: %v", err)
	}
	try(unix.Mount(dir, at, "", unix.MS_MOVE, ""))
}

// hugetlb reports whether the controller can be used.
func hugetlb(t *testing.T) bool {
	t.Helper()
	if cgroups.IsCgroup2UnifiedMode() {
		all, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(" "+strings.TrimSpace(string(all))+" ", " hugetlb ")
	}
	mounts, err := cgroups.GetCgroupMounts(true)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		for _, subsystem := range m.Subsystems {
			if subsystem == "hugetlb" {
				return true
			}
		}
	}
	return false
}
