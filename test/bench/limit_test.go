package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/crisp-cri/crisp/server/spec"
	"github.com/crisp-cri/crisp/test/noleaks"
	"github.com/crisp-cri/crisp/test/testenv"
)

// If the limit left something out, a runtime would seem to be further from it than it is.
func TestLimitMakesARestrictedPod(t *testing.T) {
	testenv.NeedRoot(t, "it makes namespaces")
	testenv.Need(t, "program:cc")
	before, err := noleaks.Take(limitName)
	if err != nil {
		t.Fatal(err)
	}
	dir, rootfs, cgroup := t.TempDir(), t.TempDir(), fmt.Sprint("/crisp-bench-limit-", os.Getpid())
	programs(t, filepath.Join(rootfs, "bin"))
	l, err := startLimit(t.Context(), dir, rootfs, cgroup)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first must leave nothing in the way of the second
		took := durations{}
		if err := l.round(t.Context(), took.add); err != nil {
			t.Fatal(err)
		}
		if len(took) != 4 {
			t.Errorf("a round has the calls %v", took)
		}
	}
	for _, command := range []string{"pod", "start"} {
		if err := l.do(command); err != nil {
			t.Fatal(err)
		}
	}
	checkRestricted(t, cgroup)
	if err := l.stop(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "limit.d", "*")); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
	cgroups, _ := filepath.Glob("/sys/fs/cgroup/*" + cgroup)
	for _, c := range append(cgroups, "/sys/fs/cgroup"+cgroup) {
		if err := os.Remove(c); err != nil && !os.IsNotExist(err) {
			t.Errorf("more than the parent of the cgroups is left: %v", err)
		}
	}
	before.Check(t, func(line string) bool { return strings.Contains(line, cgroup) || strings.Contains(line, rootfs) }, limitName)
}

// programs makes what the limit executes.
func programs(t *testing.T, bin string) {
	t.Helper()
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]string{"sleep": "for (;;) pause();", "true": ""} {
		cc := exec.Command("cc", "-static", "-x", "c", "-o", filepath.Join(bin, name), "-")
		cc.Stdin = strings.NewReader("#include <unistd.h>\nint main(void) { " + body + " return 0; }\n")
		if out, err := cc.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// checkRestricted checks what the kernel says of the container's process.
func checkRestricted(t *testing.T, cgroup string) {
	t.Helper()
	pids, err := filepath.Glob("/sys/fs/cgroup/memory" + cgroup + "/limit/c/cgroup.procs")
	if err != nil || len(pids) == 0 {
		pids = []string{"/sys/fs/cgroup" + cgroup + "/limit/c/cgroup.procs"}
	}
	data, err := os.ReadFile(pids[0])
	if err != nil {
		t.Fatal(err)
	}
	proc := filepath.Join("/proc", strings.TrimSpace(string(data)))
	status, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Uid:\t65534\t65534\t65534\t65534", "Gid:\t65534\t65534\t65534\t65534", "CapPrm:\t0000000000000000",
		"CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(string(status), "\n"+want+"\n") {
			t.Errorf("its status has no %q:\n%s", want, status)
		}
	}
	for _, ns := range []string{"mnt", "pid", "ipc"} {
		own, err := os.Readlink(filepath.Join(proc, "ns", ns))
		if host, herr := os.Readlink("/proc/self/ns/" + ns); err != nil || herr != nil || own == host {
			t.Errorf("its %s namespace is %q, the host's %q: %v, %v", ns, own, host, err, herr)
		}
	}
	mounts, err := os.ReadFile(filepath.Join(proc, "mounts"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"/", "/proc", "/dev", "/dev/pts", "/dev/mqueue", "/dev/shm", "/sys", "/sys/fs/cgroup", "/proc/sys", "/sys/firmware"} {
		if !strings.Contains(string(mounts), " "+want+" ") {
			t.Errorf("nothing is mounted at %s:\n%s", want, mounts)
		}
	}
}

func TestSeccompRules(t *testing.T) {
	text, err := seccompRules(spec.DefaultSeccomp(nil, "amd64"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(text, "\n")
	for _, want := range []string{"default 1", "arch x86_64", "rule read 0", "rule clone3 38", "rule personality 0 0 4 8 0"} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %q", want)
		}
	}
	p := spec.DefaultSeccomp(nil, runtime.GOARCH)
	p.Syscalls[0].Action = "SCMP_ACT_KILL"
	if _, err := seccompRules(p); err == nil {
		t.Error("a rule that the program cannot have was left out")
	}
}

func TestRecordLimit(t *testing.T) {
	b := &bench{report: newReport("crisp")}
	const ms = time.Millisecond
	b.recordLimit("crisp", durations{"RunPodSandbox": 2 * ms, "CreateContainer": 3 * ms, "StartContainer": 4 * ms, "ExecSync true": 5 * ms,
		"StopContainer": 1 * ms, "RemoveContainer": 1 * ms, "StopPodSandbox": 1 * ms, "RemovePodSandbox": 1 * ms})
	b.recordLimit(limitName, durations{"RunPodSandbox": 1 * ms, "create + start": 2 * ms, "ExecSync true": 1 * ms, "whole pod down": 1 * ms})
	got := map[string][2]float64{}
	for _, s := range b.report.Series {
		got[s.Name] = [2]float64{s.p50("crisp"), s.p50(limitName)}
	}
	want := map[string][2]float64{"RunPodSandbox": {2, 1}, "create + start": {7, 2}, "whole pod up": {9, 3}, "ExecSync true": {5, 1}, "whole pod down": {4, 1}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
