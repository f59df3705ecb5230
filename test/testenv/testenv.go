// Package testenv probes what the machine that runs the tests has, and defines which
// tests may be skipped where.
//
// A test must not be skipped because the product says that it cannot do something:
// then a fault of the product would be a skip. So what a machine has is probed here
// again, by other means than the product's, and skips.txt lists the tests that may be
// skipped, each with what must be missing. Judge compares that with the report of go
// test; test/skips does so for make test, test/vm for the tests on the emulated node.
package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Need skips the test if one of these needs is not met.
func Need(t testing.TB, needs ...string) {
	t.Helper()
	for _, need := range needs {
		if why := Lacks(need); why != "" {
			t.Skipf("needs %s: %s", need, why)
		}
	}
}

// Lacks returns why this machine does not meet need, "" if it does. "!need" is the
// opposite of need. "program:NAME" is a program on PATH, "file:PATH" a file, and
// "linux:6.7" a kernel of at least that version; the others are the keys of probes.
func Lacks(need string) string {
	if opposite, ok := strings.CutPrefix(need, "!"); ok {
		if Lacks(opposite) == "" {
			return "this machine has " + opposite
		}
		return ""
	}
	var err error
	switch kind, arg, _ := strings.Cut(need, ":"); kind {
	case "program":
		_, err = exec.LookPath(arg)
	case "file":
		_, err = os.Stat(arg)
	case "linux":
		err = linux(arg)
	default:
		probe, ok := probes[need]
		if !ok {
			return "there is no probe for it"
		}
		err = probe()
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// known reports whether Lacks knows the need.
func known(need string) bool {
	kind, _, typed := strings.Cut(strings.TrimPrefix(need, "!"), ":")
	if typed {
		return kind == "program" || kind == "file" || kind == "linux"
	}
	return probes[kind] != nil
}

// long is the need of tests that -short leaves out. Every machine meets it, see Judge.
const long = "long"

// probes are each run once: some start programs.
var probes = map[string]func() error{
	long: func() error { return nil },

	"systemd": stat("/run/systemd/system"), // sd_booted(3)
	"namespaces": func() error {
		return yes(os.Geteuid() == 0 && stat("/run/systemd/system")() != nil, "the tests run on the machine itself")
	},

	"cgroup2":          stat("/sys/fs/cgroup/cgroup.controllers"),
	"cgroup2-anywhere": anyOf("/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/unified/cgroup.controllers"),
	"hybrid":           stat("/sys/fs/cgroup/unified/cgroup.controllers"),
	"hugetlb-mounted":  anyOf("/sys/fs/cgroup/hugetlb/cgroup.procs"),
	"hugetlb":          func() error { return hasWord("/proc/cgroups", "hugetlb") },

	"apparmor": func() error {
		return errors.Join(hasWord("/sys/module/apparmor/parameters/enabled", "Y"), onPath("apparmor_parser", "/usr/sbin"))
	},
	"selinux":   selinux,
	"enforcing": func() error { return hasWord("/sys/fs/selinux/enforce", "1") },

	"criu":         sync.OnceValue(criu),
	"idmap":        sync.OnceValue(idmap),
	"sys-resource": func() error { return capability(unix.CAP_SYS_RESOURCE) },
	"kmsg":         open("/dev/kmsg"),
	"ptmx":         open("/dev/ptmx"),
	"ipv6":         stat("/proc/sys/net/ipv6/conf/default/dad_transmits"),
	"disk":         anyOf("/sys/block/*"),
	"ptrace":       sync.OnceValue(ptrace),
	"leases":       sync.OnceValue(leases),
	"labels":       sync.OnceValue(labels),
	"immutable":    sync.OnceValue(immutable),
	"fanotify":     sync.OnceValue(fanotify),
	"erofs":        sync.OnceValue(erofs),

	"package": func() error {
		return yes(os.Getenv("CRISP_DEB") != "" && os.Getenv("CRISP_NEXT_DEB") != "", "no package of crisp is to be installed")
	},
	"power-cuts": func() error { return yes(os.Getenv("CRISP_POWER_CUTS") != "", "CRISP_POWER_CUTS is not set") },
	"containerd": unpacked("containerd", "ctr"),
	"containerd-2": func() error {
		return yes(os.Getenv("CONTAINERD") != "", "CONTAINERD names no directory with a containerd 2, its shim, ctr and runc")
	},
	"kubelet": func() error { return stat(os.Getenv("KUBELET"))() },
	"slirp4netns": func() error {
		_, err := exec.LookPath("slirp4netns")
		_, tun := os.Stat("/dev/net/tun")
		return errors.Join(err, tun)
	},
	"gvisor":   shims("runsc", "containerd-shim-runsc-v1"),
	"shims":    shims("containerd-shim-runc-v2"),
	"promtool": unpacked("prometheus", "promtool"),
	"busybox":  unpacked("busybox-static", "busybox"),
	"upgrade-from": func() error {
		return yes(os.Getenv("UPGRADE_FROM") != "", "UPGRADE_FROM names no directory with the programs of another release")
	},
	"model-peer": func() error {
		return yes(os.Getenv("MODEL_PEER") != "", "MODEL_PEER names no runtime to be compared with the model")
	},
}

func yes(is bool, otherwise string) error {
	if is {
		return nil
	}
	return errors.New(otherwise)
}

func stat(path string) func() error {
	return func() error {
		_, err := os.Stat(path)
		return err
	}
}

func open(path string) func() error {
	return func() error {
		f, err := os.Open(path)
		if err == nil {
			f.Close()
		}
		return err
	}
}

// anyOf requires a file that matches one of the patterns.
func anyOf(patterns ...string) func() error {
	return func() error {
		for _, p := range patterns {
			if found, _ := filepath.Glob(p); len(found) > 0 {
				return nil
			}
		}
		return fmt.Errorf("there is no %s", strings.Join(patterns, " and no "))
	}
}

// hasWord requires a word in a file.
func hasWord(path, word string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !slices.Contains(strings.Fields(string(data)), word) {
		return fmt.Errorf("%s has no %s", path, word)
	}
	return nil
}

// onPath searches dirs as well.
func onPath(program string, dirs ...string) error {
	_, err := exec.LookPath(program)
	for _, dir := range dirs {
		if err != nil {
			_, err = os.Stat(filepath.Join(dir, program))
		}
	}
	return err
}

// linux requires a kernel of at least this version: "6.7".
func linux(want string) error {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return err
	}
	release := unix.ByteSliceToString(uts.Release[:])
	var major, minor, wantMajor, wantMinor int
	if _, err := fmt.Sscanf(want, "%d.%d", &wantMajor, &wantMinor); err != nil {
		return err
	}
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return err
	}
	return yes(major > wantMajor || major == wantMajor && minor >= wantMinor, "the kernel is "+release)
}

func capability(bit int) error {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(data), "CapEff:")
	text, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
	set, err := strconv.ParseUint(text, 16, 64)
	if err != nil {
		return err
	}
	return yes(set&(1<<bit) != 0, "this process has no such capability")
}

// criu asks CRIU itself whether it works with this kernel.
func criu() error {
	path, err := exec.LookPath("criu")
	if err != nil {
		path = "/usr/sbin/criu"
	}
	out, err := exec.Command(path, "check").CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("criu check: %w: %s", err, lines[len(lines)-1])
	}
	return nil
}

// Program returns the path of a program of what make test unpacks from Debian's package, or else
// of an installed one. Without either it skips the test.
func Program(t testing.TB, deb, program string) string {
	t.Helper()
	path, err := find(deb, program)
	if err != nil {
		t.Skipf("needs %s: neither on PATH nor in .cache/%s, where make test unpacks Debian's package", program, deb)
	}
	return path
}

// unpacked looks for what Program returns.
func unpacked(deb, program string) func() error {
	return func() error {
		_, err := find(deb, program)
		return err
	}
}

// Shims returns the directory of .cache/shims, where make test builds other runtimes' shims, "" if it
// has none. Scripts find it as $SHIMS.
func Shims() string {
	path, err := cached("shims/containerd-shim-runc-v2")
	if err != nil {
		return ""
	}
	return filepath.Dir(path)
}

// GVisorShim returns the path of a shim of gVisor's that can start here: it lowers its oom_score_adj, and
// without that capability fails, but for the one in unprivileged/. Scripts find it as $GVISOR_SHIM.
func GVisorShim() string {
	const name = "containerd-shim-runsc-v1"
	if capability(unix.CAP_SYS_RESOURCE) != nil {
		return filepath.Join(Shims(), "unprivileged", name)
	}
	return filepath.Join(Shims(), name)
}

// Hierarchies keeps the hierarchies of cgroup v1 as they are until the test ends. gVisor cannot
// start beside one that is active and not mounted. A test that makes such a one does so alone.
func Hierarchies(t testing.TB, alone bool) {
	t.Helper()
	dir, err := os.Open("/sys/fs/cgroup") // the same directory for tests in all mount namespaces
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	how := unix.LOCK_SH
	if alone {
		how = unix.LOCK_EX
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(dir.Fd()), how)
	}
	if err != nil {
		t.Fatalf("lock /sys/fs/cgroup: %v", err)
	}
}

// RemoveShimDirs removes at the end of a test the directories that containerd's shims make for the
// containers of all instances and do not remove, if they are empty. Call it before the containers' own
// end is registered.
func RemoveShimDirs(t testing.TB) { t.Cleanup(RemoveShimDirsNow) }

// RemoveShimDirsNow does what RemoveShimDirs does at the end of a test.
func RemoveShimDirsNow() {
	var dirs []string
	for _, root := range []string{"/run/containerd", "/run/shimtest"} {
		_ = filepath.WalkDir(root, func(path string, _ os.DirEntry, _ error) error {
			dirs = append(dirs, path)
			return nil
		})
	}
	for _, dir := range slices.Backward(dirs) {
		_ = unix.Rmdir(dir)
	}
}

// shims looks for programs in the directory that Shims returns.
func shims(programs ...string) func() error {
	return func() error {
		for _, program := range programs {
			if _, err := cached("shims/" + program); err != nil {
				return fmt.Errorf("make test has not built %s%s", program, whyNoShims())
			}
		}
		return nil
	}
}

// whyNoShims returns the last line of what the build of the shims said.
func whyNoShims() string {
	path, err := cached("shims.log")
	if err != nil {
		return ""
	}
	text, err := os.ReadFile(path)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if last := lines[len(lines)-1]; err == nil && last != "" {
		return ": " + last
	}
	return ""
}

// cached returns the path of a file in .cache of the tree that the test is in.
func cached(name string) (string, error) {
	for dir, err := os.Getwd(); err == nil && dir != "/"; dir = filepath.Dir(dir) {
		path := filepath.Join(dir, ".cache", name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no .cache/%s", name)
}

func find(deb, program string) (string, error) {
	for _, bin := range []string{"usr/bin", "bin"} { // Debian 12 has busybox in the latter
		if path, err := cached(filepath.Join(deb, bin, program)); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return "", errors.New("it is neither installed nor unpacked in .cache/" + deb)
	}
	return path, nil
}
