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
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/testenv"
)

// startCareLab is startLab of an agent with these flags, in a cgroup of its own.
func startCareLab(t *testing.T, flags ...string) *lab {
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
			if out, err := exec.Command("systemctl", "stop", root+".slice").CombinedOutput(); err != nil { // with those below it
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

// systemd tells whether it keeps the cgroups.
func (l *lab) systemd() bool {
	l.t.Helper()
	resp, err := l.n.runtime().RuntimeConfig(context.WithoutCancel(l.t.Context()), &cri.RuntimeConfigRequest{})
	if err != nil {
		l.t.Fatal(err)
	}
	return resp.GetLinux().GetCgroupDriver() == cri.CgroupDriver_SYSTEMD
}

// cgroups are where a cgroup below this lab's root is, in each hierarchy. Its path
// is that of cgroupfs; "*" as its last name is all below the one before.
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

// slicePath is where systemd has what cgroupfs has at path (systemd.slice(5)).
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

func (l *lab) reason() string {
	if pod := l.pod(); pod != nil {
		return pod.Status.Reason
	}
	return ""
}

// The cgroups of pods have the values of the kubelet, survive the agent and go
// with their pods.
func TestAgentCgroups(t *testing.T) {
	l := startCareLab(t, "--pod-max-pids", "100")
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
		t.Errorf("the cgroup stays: %v", l.cgroups(path))
	}
}

// Pods that this node cannot run fail, and are shown with why.
func TestAgentAdmission(t *testing.T) {
	l := startCareLab(t, "--node-labels", "disk=ssd", "--max-pods", "4")
	l.run(t, "first", `
  terminationGracePeriodSeconds: 1
  nodeSelector: {disk: ssd}
  containers: [{name: app, image: IMAGE, args: [sleep, for-ever], ports: [{containerPort: 80, hostPort: 18080}]}]
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		for _, test := range []struct{ name, spec, reason string }{
			{"cpus", "containers: [{name: app, image: IMAGE, resources: {requests: {cpu: 1000}}}]", "OutOfcpu"},
			{"pages", "containers: [{name: app, image: IMAGE, resources: {limits: {cpu: 10m, memory: 8Mi, hugepages-2Mi: 1Ti}}}]", "OutOfhugepages-2Mi"},
			{"disk", "containers: [{name: app, image: IMAGE, resources: {requests: {ephemeral-storage: 1Pi}}}]", "OutOfephemeral-storage"},
			{"port", "containers: [{name: app, image: IMAGE, ports: [{containerPort: 81, hostPort: 18080}]}]", "NodePorts"},
			{"label", "nodeSelector: {disk: tape}\n  containers: [{name: app, image: IMAGE}]", "NodeAffinity"},
			{"sysctl", "securityContext: {sysctls: [{name: kernel.msgmax, value: \"1\"}]}\n  containers: [{name: app, image: IMAGE}]", "SysctlForbidden"},
		} {
			(&lab{l.agentProcess, "lab"}).run(t, test.name, "  "+test.spec+"\n", func(t *testing.T, l *lab) {
				l.awaitPhase(v1.PodFailed)
				if got := l.reason(); got != test.reason || len(l.containers("app")) > 0 {
					t.Errorf("reason %q, want %q; containers %v", got, test.reason, l.containers("app"))
				}
				l.awaitEvent(test.reason + ": ")
				l.restart()
				time.Sleep(time.Second)
				if l.phase() != v1.PodFailed || len(l.containers("app")) > 0 {
					t.Errorf("after a restart of the agent it is %s", l.phase())
				}
			})
		}
		l.awaitReady()
		if n := l.status("app").RestartCount; n != 0 {
			t.Errorf("the pod that was there has %d restarts", n)
		}
	})
}

// A pod that comes while the agent is away begins beside those that have finished, and
// those that did not fit: they take no room. One that did not fit is asked about again.
func TestAgentRoomAfterRestart(t *testing.T) {
	l := startCareLab(t, "--max-pods", "1")
	const lasts = "  terminationGracePeriodSeconds: 1\n  containers: [{name: app, image: IMAGE, args: [sleep, for-ever]}]\n"
	l.run(t, "job", "  restartPolicy: Never\n  containers: [{name: app, image: IMAGE, args: [exit, \"0\"]}]\n", func(t *testing.T, l *lab) {
		l.awaitPhase(v1.PodSucceeded)
		l.pick(t, "lasts").run(t, "lasts", lasts, func(t *testing.T, first *lab) {
			first.awaitReady()
			l.pick(t, "waits").run(t, "waits", lasts, func(t *testing.T, second *lab) {
				second.awaitPhase(v1.PodFailed)
				if got := second.reason(); got != "OutOfpods" {
					t.Errorf("reason %q", got)
				}
				second.end(syscall.SIGTERM)
				first.remove()
				first.name = "another"
				first.write(lasts)
				second.start()
				first.agentProcess.cmd, l.agentProcess.cmd = second.cmd, second.cmd
				first.awaitReady() // sorted before the others, it is asked about first
				if got := second.reason(); got != "OutOfpods" {
					t.Errorf("the pod that does not fit still: reason %q", got)
				}
				first.remove()
				first.until(func() bool { return first.pod() == nil }, "the pod is gone")
				second.restart()
				first.agentProcess.cmd, l.agentProcess.cmd = second.cmd, second.cmd
				second.awaitReady()
			})
		})
	})
}

// A critical pod gets the place of another.
func TestAgentPreemption(t *testing.T) {
	l := startCareLab(t, "--max-pods", "1")
	l.run(t, "victim", `
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: IMAGE, args: [sleep, for-ever]}]
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		(&lab{l.agentProcess, "lab"}).run(t, "vital", `
  terminationGracePeriodSeconds: 1
  priorityClassName: system-node-critical
  containers: [{name: app, image: IMAGE, args: [sleep, for-ever]}]
`, func(t *testing.T, vital *lab) {
			vital.awaitReady()
			l.awaitPhase(v1.PodFailed)
			if got := l.reason(); got != "Preempting" || l.condition(v1.DisruptionTarget) != v1.ConditionTrue {
				t.Errorf("reason %q, %+v", got, l.pod().Status.Conditions)
			}
		})
	})
}

// Under pressure pods are evicted, and the node says that it is.
func TestAgentEviction(t *testing.T) {
	l := startCareLab(t, "--eviction-hard", "memory.available<99.9%")
	l.run(t, "evicted", `
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: IMAGE, args: [sleep, for-ever], resources: {requests: {memory: 1Mi}}}]
`, func(t *testing.T, l *lab) {
		l.awaitPhase(v1.PodFailed)
		if got := l.reason(); got != "Evicted" {
			t.Errorf("reason %q", got)
		}
		l.until(func() bool { return len(l.containers("app")) == 0 || !running(l) }, "nothing of it runs")
		l.awaitEvent("Evicted: The node ")
		if l.condition(v1.DisruptionTarget) != v1.ConditionTrue {
			t.Errorf("%+v", l.pod().Status.Conditions)
		}
		l.says(0, `MemoryPressure=True KubeletHasInsufficientMemory`, "status")
	})
}

// A pod that fills the disk is evicted, and what it has written goes with it: nobody
// else has to end.
func TestAgentFullDisk(t *testing.T) {
	l := startCareLab(t) // on the machine's disk, which may be half full
	program, err := os.Stat(l.n.archive)
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(l.n.dir, "agent")
	l.until(func() bool { return exists(filepath.Join(root, "agent.sock")) }, "the agent serves")
	l.end(syscall.SIGTERM)
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, fmt.Sprintf("size=%d", 20*program.Size())); err != nil {
		t.Fatal(err)
	}
	l.flags = append(l.flags, "--eviction-hard", "nodefs.available<50%", "--eviction-pressure-transition-period", "1s")
	l.start()
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil { // the agent ends after it
			t.Error(err)
		}
	})
	const modest = "  terminationGracePeriodSeconds: 1\n  containers: [{name: app, image: IMAGE, args: [sleep, for-ever]}]\n"
	l.run(t, "modest", modest, func(t *testing.T, modest *lab) {
		modest.awaitReady()
		fill := ""
		for i := range 6 {
			fill += fmt.Sprintf("copy, /testbin, /d/%d, ", i)
		}
		modest.run(t, "greedy", `
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: IMAGE, args: [`+fill+`sleep, for-ever], volumeMounts: [{name: d, mountPath: /d}]}]
  volumes: [{name: d, emptyDir: {}}]
`, func(t *testing.T, l *lab) {
			l.awaitPhase(v1.PodFailed)
			if got := l.reason(); got != "Evicted" {
				t.Errorf("reason %q", got)
			}
			l.until(func() bool {
				out, _ := l.agentProcess.crisp("", "status")
				return strings.Contains(out, "DiskPressure=False") || modest.phase() == v1.PodFailed
			}, "there is room again")
			if got := modest.phase(); got != v1.PodRunning {
				t.Errorf("the other pod is %s: %s", got, modest.reason())
			}
		})
	})
}

// A node that has less memory than it should lets in who has asked for some, and
// nobody who has not. (The threshold is soft and its grace long: nobody is evicted
// meanwhile.)
func TestAgentUnderPressure(t *testing.T) {
	l := startCareLab(t, "--eviction-soft", "memory.available<100%", "--eviction-soft-grace-period", "memory.available=10m")
	l.until(func() bool {
		out, _ := l.agentProcess.crisp("", "status")
		return strings.Contains(out, "MemoryPressure=True")
	}, "the node is under pressure")
	l.run(t, "effort", `
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: IMAGE, args: [sleep, for-ever]}]
`, func(t *testing.T, l *lab) {
		l.awaitPhase(v1.PodFailed)
		if got := l.reason(); got != "Evicted" || len(l.containers("")) > 0 {
			t.Errorf("reason %q, containers %v", got, l.containers(""))
		}
		l.says(0, `effort +0/\d +Evicted +0 `, "get", "pods")
	})
	l.run(t, "burstable", `
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: IMAGE, args: [sleep, for-ever], resources: {requests: {memory: 1Mi}}}]
`, func(t *testing.T, l *lab) { l.awaitReady() })
}

// A pod that fills its volume beyond its limit is evicted.
func TestAgentVolumeLimit(t *testing.T) {
	l := startCareLab(t)
	l.run(t, "greedy", `
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: IMAGE, args: [copy, /testbin, /d/a, sleep, for-ever], volumeMounts: [{name: d, mountPath: /d}]}]
  volumes: [{name: d, emptyDir: {sizeLimit: 100Ki}}]
`, func(t *testing.T, l *lab) {
		l.awaitPhase(v1.PodFailed)
		l.awaitEvent(`Evicted: Usage of EmptyDir volume "d" exceeds the limit "100Ki"`)
		if l.condition(v1.DisruptionTarget) != v1.ConditionTrue {
			t.Errorf("%+v", l.pod().Status.Conditions)
		}
	})
}

func running(l *lab) bool {
	for _, c := range l.containers("app") {
		if c.State == 1 { // CONTAINER_RUNNING
			return true
		}
	}
	return false
}

// A pod without hostUsers has IDs of its own, and the same after the agent was
// killed.
func TestAgentUserNamespace(t *testing.T) {
	testenv.Need(t, "idmap")
	l := startCareLab(t)
	l.run(t, "own", `
  terminationGracePeriodSeconds: 1
  hostUsers: false
  containers: [{name: app, image: IMAGE, args: [sleep, for-ever], volumeMounts: [{name: d, mountPath: /d}]}]
  volumes: [{name: d, emptyDir: {}}]
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		ids := strings.Fields(l.exec("app", "cat", "/proc/self/uid_map"))
		if len(ids) != 3 || ids[0] != "0" || ids[1] == "0" || ids[2] != "65536" {
			t.Errorf("uid_map %v", ids)
		}
		l.exec("app", "write", "/d/f", "x")
		l.restart()
		l.until(func() bool { return len(l.containers("app")) == 1 }, "the agent is back")
		_, id, _ := strings.Cut(l.status("app").ContainerID, "://")
		if _, err := l.n.runtime().StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: id}); err != nil {
			t.Fatal(err)
		}
		l.awaitRestarts("app", 1)
		l.awaitReady()
		if again := strings.Fields(l.exec("app", "cat", "/proc/self/uid_map")); len(again) != 3 || again[1] != ids[1] {
			t.Errorf("uid_map %v, before %v", again, ids)
		}
		if got := l.exec("app", "cat", "/d/f"); got != "x" {
			t.Errorf("the volume has %q", got)
		}
	})
}
