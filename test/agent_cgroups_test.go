package test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/cgroups"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// startCgroupLab returns a lab whose agent has these flags and a root cgroup of its own.
func startCgroupLab(t *testing.T, flags ...string) *lab {
	t.Helper()
	n, _ := startNode(t)
	manifests := filepath.Join(n.dir, "manifests")
	if err := os.Mkdir(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	root := fmt.Sprintf("crisptest%d", os.Getpid())
	l := &lab{agentProcess: &agentProcess{t: t, n: n, manifests: manifests, flags: append([]string{"--cgroup-root", root}, flags...)}}
	l.start()
	t.Cleanup(func() {
		l.end(syscall.SIGTERM)
		if l.systemd() {
			if out, err := exec.Command("systemctl", "stop", root+".slice").CombinedOutput(); err != nil { // and the slices below it
				t.Errorf("slice: %v: %s", err, out)
			}
		}
		for _, dir := range l.cgroups("") {
			for _, name := range []string{"kubepods/burstable", "kubepods/besteffort", "kubepods", ""} {
				if err := os.Remove(filepath.Join(dir, name)); err != nil && !os.IsNotExist(err) {
					t.Errorf("cgroup: %v", err)
				}
			}
		}
	})
	return l
}

// systemd reports whether systemd makes the node's cgroups.
func (l *lab) systemd() bool {
	l.t.Helper()
	resp, err := l.n.runtime().RuntimeConfig(context.WithoutCancel(l.t.Context()), &cri.RuntimeConfigRequest{})
	if err != nil {
		l.t.Fatal(err)
	}
	return resp.GetLinux().GetCgroupDriver() == cri.CgroupDriver_SYSTEMD
}

// cgroups returns the directories of a cgroup below this lab's root, one for each
// hierarchy. Its path is that of cgroupfs; a last name of "*" stands for all cgroups below.
func (l *lab) cgroups(path string) []string {
	l.t.Helper()
	path = filepath.Join(fmt.Sprintf("crisptest%d", os.Getpid()), path)
	if l.systemd() {
		path = slicePath(path)
	}
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		dirs, err := filepath.Glob(filepath.Join(pattern, path))
		if err != nil {
			l.t.Fatal(err)
		}
		found = append(found, dirs...)
	}
	return found
}

// slicePath returns the path of systemd's slice for a path of cgroupfs (systemd.slice(5)).
func slicePath(path string) string {
	var dirs []string
	slice := ""
	for name := range strings.SplitSeq(path, "/") {
		if name == "*" {
			dirs = append(dirs, name)
			break
		}
		slice += strings.ReplaceAll(name, "-", "_")
		dirs = append(dirs, slice+".slice")
		slice += "-"
	}
	return filepath.Join(dirs...)
}

func (l *lab) cgroupFile(path string, names ...string) string {
	for _, dir := range l.cgroups(path) {
		for _, name := range names {
			if data, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				return strings.TrimSpace(string(data))
			}
		}
	}
	return ""
}

// The cgroups of pods have the kubelet's values, outlive the agent, and are removed with
// their pods.
func TestAgentCgroups(t *testing.T) {
	l := startCgroupLab(t, "--pod-max-pids", "100")
	path := ""
	l.run(t, "burstable", `
  terminationGracePeriodSeconds: 1
  containers:
  - {name: app, image: IMAGE, args: [sleep, for-ever], resources: {requests: {cpu: 100m}, limits: {cpu: 200m, memory: 64Mi}}}
  - {name: too, image: IMAGE, args: [sleep, for-ever], resources: {limits: {cpu: 300m, memory: 64Mi}}}
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		path = "kubepods/burstable/pod" + string(l.pod().UID)
		check := func() {
			t.Helper()
			for _, test := range []struct{ v1, want1, v2, want2 string }{
				{"cpu.shares", "409", "cpu.weight", fmt.Sprint(cgroups.ConvertCPUSharesToCgroupV2Value(409))},
				{"cpu.cfs_quota_us", "50000", "cpu.max", "50000 100000"},
				{"memory.limit_in_bytes", "134217728", "memory.max", "134217728"},
				{"pids.max", "100", "pids.max", "100"},
			} {
				name, want := test.v1, test.want1
				if cgroups.IsCgroup2UnifiedMode() {
					name, want = test.v2, test.want2
				}
				if got := l.cgroupFile(path, name); got != want {
					t.Errorf("%s is %q, want %s", name, got, want)
				}
			}
		}
		check()
		if n := len(strings.Fields(l.cgroupFile(path+"/*", "cgroup.procs"))); n == 0 {
			t.Error("no container is in the pod's cgroup")
		}
		if l.systemd() {
			if out, err := exec.Command("systemctl", "daemon-reload").CombinedOutput(); err != nil {
				t.Errorf("systemctl daemon-reload: %v: %s", err, out)
			}
			check()
		}
		l.restart()
		l.awaitReady()
		check()
	})
	if l.cgroupFile(path, "cgroup.procs", "pids.max") != "" || len(l.cgroups(path)) > 0 {
		t.Errorf("the pod's cgroup is left: %v", l.cgroups(path))
	}
}
