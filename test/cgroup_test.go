package test

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/cgroups"
	_ "github.com/opencontainers/cgroups/devices"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/test/testenv"
)

// A node with cgroup v2, with either driver, used as by the kubelet: the kernel has the
// requested limits, and keeps them whatever systemd does.
func TestUnifiedNode(t *testing.T) {
	host := kernel.Probe()
	if !host.CgroupV2 {
		t.Skip("needs a host with cgroup v2 alone")
	}
	for _, driver := range []string{"systemd", "cgroupfs"} {
		t.Run(driver, func(t *testing.T) {
			if driver == "systemd" && !host.Systemd {
				t.Skip("systemd does not run this host")
			}
			u := newUnified(t, driver)
			u.limitsOfAContainer()
			u.updates()
			u.restarts()
			u.stats()
			u.outOfMemory()
			u.privileged()
			u.ownCgroup()
		})
	}
}

const mib = 1 << 20

// hugePages returns a size of huge pages that the kernel has, "" without the controller.
func hugePages() string {
	if sizes := cgroups.HugePageSizes(); kernel.Probe().Has("hugetlb") && len(sizes) > 0 {
		return sizes[0]
	}
	return ""
}

func (u *unified) limitsOfAContainer() {
	t := u.t
	res := &cri.LinuxContainerResources{
		CpuShares: 512, CpuQuota: 12345, CpuPeriod: 100000, CpusetCpus: "0",
		MemoryLimitInBytes: 64 * mib, MemorySwapLimitInBytes: 96 * mib,
		Unified: map[string]string{"memory.high": fmt.Sprint(60 * mib), "memory.low": fmt.Sprint(8 * mib)},
	}
	size := hugePages()
	if size != "" {
		res.HugepageLimits = []*cri.HugepageLimit{{PageSize: size, Limit: 4 * mib}}
	}
	u.box, u.boxPid = u.begin("p", "box", res, "eat", "8", "print", "fed", "sleep", "for-ever")
	dirs, err := cgroupsOf(u.boxPid)
	if err != nil {
		t.Fatal(err)
	}
	u.boxDir = dirs[""]
	want := filepath.Join(u.pod, u.box)
	if u.driver == "systemd" {
		want = filepath.Join(u.pod, "crisp-"+u.box+".scope")
	}
	if u.boxDir != want {
		t.Errorf("the container is in %s, want %s", u.boxDir, want)
	}
	files := map[string]string{
		"memory.max": fmt.Sprint(64 * mib), "memory.swap.max": fmt.Sprint(32 * mib), "memory.high": fmt.Sprint(60 * mib), "memory.low": fmt.Sprint(8 * mib),
		"cpu.weight": fmt.Sprint(cgroups.ConvertCPUSharesToCgroupV2Value(512)), "cpu.max": u.percent(12345), "cpuset.cpus": "0", "pids.max": "max",
	}
	if size != "" {
		files["hugetlb."+size+".max"] = fmt.Sprint(4 * mib)
	}
	u.check("after the start", u.boxDir, files)
	u.systemctl("daemon-reload")
	u.check("after daemon-reload", u.boxDir, files)
	u.shows("after the start", 12345, 64*mib, 96*mib)

	// The container sees its own cgroup as the root, and so does an exec, which reads its limits there.
	for path, want := range map[string]string{"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/memory.max": fmt.Sprint(64 * mib)} {
		resp, err := u.runtime().ExecSync(u.ctx(), &cri.ExecSyncRequest{ContainerId: u.box, Cmd: []string{"/testbin", "cat", path}})
		if got := strings.TrimSpace(string(resp.GetStdout())); err != nil || got != want {
			t.Errorf("inside, %s is %q, %v", path, got, err)
		}
	}
}

// percent returns a quota as in cpu.max: systemd rounds it up to whole percents.
func (u *unified) percent(quota int) string {
	if u.driver == "systemd" {
		quota = (quota + 999) / 1000 * 1000
	}
	return fmt.Sprintf("%d 100000", quota)
}

// shows checks the limits in the status, which are the requested ones.
func (u *unified) shows(when string, quota, memory, swap int64) {
	u.t.Helper()
	resp, err := u.runtime().ContainerStatus(u.ctx(), &cri.ContainerStatusRequest{ContainerId: u.box})
	r := resp.GetStatus().GetResources().GetLinux()
	if err != nil || r.GetCpuQuota() != quota || r.GetMemoryLimitInBytes() != memory || r.GetMemorySwapLimitInBytes() != swap {
		u.t.Errorf("%s: the status has %v (err %v), want quota %d, memory %d, swap %d", when, r, err, quota, memory, swap)
	}
}

func (u *unified) updates() {
	t := u.t
	size := hugePages()
	change := &cri.LinuxContainerResources{
		CpuQuota: 25500, MemoryLimitInBytes: 80 * mib, MemorySwapLimitInBytes: 120 * mib,
		Unified: map[string]string{"memory.high": fmt.Sprint(70 * mib)},
	}
	files := map[string]string{
		"memory.max": fmt.Sprint(80 * mib), "memory.swap.max": fmt.Sprint(40 * mib), "memory.high": fmt.Sprint(70 * mib), "memory.low": fmt.Sprint(8 * mib),
		"cpu.weight": fmt.Sprint(cgroups.ConvertCPUSharesToCgroupV2Value(512)), "cpu.max": u.percent(25500), "cpuset.cpus": "0", "pids.max": "max",
	}
	if size != "" {
		change.HugepageLimits = []*cri.HugepageLimit{{PageSize: size, Limit: 6 * mib}}
		files["hugetlb."+size+".max"] = fmt.Sprint(6 * mib)
	}
	if _, err := u.runtime().UpdateContainerResources(u.ctx(), &cri.UpdateContainerResourcesRequest{ContainerId: u.box, Linux: change}); err != nil {
		t.Fatal(err)
	}
	u.check("after the update", u.boxDir, files)
	u.systemctl("daemon-reload")
	u.check("after the update and daemon-reload", u.boxDir, files)
	u.shows("after the update", 25500, 80*mib, 120*mib)

	// Each update has a value that the kernel refuses, and others that it would accept. Some of these
	// are written before that one.
	for name, bad := range map[string]*cri.LinuxContainerResources{
		"no such file":  {CpuQuota: 50000, MemoryLimitInBytes: 90 * mib, CpusetMems: "0", Unified: map[string]string{"memory.min": "4194304", "memory.nonsense": "1"}},
		"bad value":     {CpuShares: 1024, MemoryLimitInBytes: 90 * mib, MemorySwapLimitInBytes: 200 * mib, Unified: map[string]string{"pids.max": "50", "memory.high": "lots"}},
		"no such pages": {CpuPeriod: 50000, MemoryLimitInBytes: 90 * mib, HugepageLimits: []*cri.HugepageLimit{{PageSize: "3MB", Limit: 3 * mib}}},
		"no such CPU":   {MemoryLimitInBytes: 90 * mib, CpusetCpus: "4000"},
	} {
		_, err := u.runtime().UpdateContainerResources(u.ctx(), &cri.UpdateContainerResourcesRequest{ContainerId: u.box, Linux: bad})
		if err == nil {
			t.Errorf("%s: the update was accepted", name)
			continue
		}
		t.Logf("%s: %v", name, err)
		files["memory.min"], files["cpuset.mems.effective"] = "0", "0" // they cannot become empty again
		u.check(name, u.boxDir, files)
		u.systemctl("daemon-reload")
		u.check(name+", after daemon-reload", u.boxDir, files)
		u.shows(name, 25500, 80*mib, 120*mib)
	}

	// The kubelet owns the pod's cgroup: crispd records the new limits, and does not set
	// them.
	_, err := u.runtime().UpdatePodSandboxResources(u.ctx(), &cri.UpdatePodSandboxResourcesRequest{
		PodSandboxId: u.sandbox, Resources: &cri.LinuxContainerResources{MemoryLimitInBytes: 300 * mib, Unified: map[string]string{"memory.high": "1"}},
	})
	if err != nil {
		t.Error(err)
	}
	u.check("after an update of the pod", u.pod, map[string]string{"memory.max": fmt.Sprint(512 * mib), "memory.high": "max"})
	status, err := u.runtime().PodSandboxStatus(u.ctx(), &cri.PodSandboxStatusRequest{PodSandboxId: u.sandbox, Verbose: true})
	if err != nil || !strings.Contains(fmt.Sprint(status.Info), "314572800") {
		t.Errorf("the verbose status lacks the pod's resources: %v, %v", status.GetInfo(), err)
	}
}

func (u *unified) restarts() {
	t := u.t
	before, err := u.executorPid()
	if err != nil {
		t.Fatal(err)
	}
	if own, err := cgroupsOf(before); err != nil {
		t.Error(err)
	} else if dir := own[""]; testenv.Exists("/run/systemd/system") && (filepath.Dir(dir) != "/sys/fs/cgroup/system.slice" || !strings.HasPrefix(filepath.Base(dir), "crisp-executor-") || !strings.HasSuffix(dir, ".scope")) {
		t.Errorf("the executor is in %s", dir)
	}
	if err := u.stopDaemon(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	u.systemctl("daemon-reexec")
	if err := u.start(u.config, nil); err != nil {
		t.Fatal(err)
	}
	if now, err := u.executorPid(); err != nil || now != before || u.pid(u.box) != u.boxPid {
		t.Errorf("executor %d, container %d; they were %d and %d (err %v)", now, u.pid(u.box), before, u.boxPid, err)
	}
	u.check("after restarts", u.boxDir, map[string]string{"memory.max": fmt.Sprint(80 * mib), "cpu.max": u.percent(25500)})
	resp, err := u.runtime().ExecSync(u.ctx(), &cri.ExecSyncRequest{ContainerId: u.box, Cmd: []string{"/testbin", "print", "alive"}})
	if err != nil || string(resp.Stdout) != "alive\n" {
		t.Errorf("exec after restarts: %v, %v", resp, err)
	}
}

func (u *unified) stats() {
	t := u.t
	resp, err := u.runtime().ContainerStats(u.ctx(), &cri.ContainerStatsRequest{ContainerId: u.box})
	if err != nil {
		t.Fatal(err)
	}
	s := resp.Stats
	if s.Memory.GetUsageBytes().GetValue() < 8*mib || s.Memory.GetWorkingSetBytes().GetValue() == 0 || s.Cpu.GetUsageCoreNanoSeconds().GetValue() == 0 {
		t.Errorf("stats are %v", s)
	}
	if testenv.Exists("/proc/pressure/memory") && (s.Cpu.GetPsi() == nil || s.Memory.GetPsi() == nil || s.Io.GetPsi() == nil) {
		t.Errorf("stats have no pressure: %v", s)
	}
	if s.Swap.GetSwapAvailableBytes().GetValue() != 40*mib {
		t.Errorf("swap is %v", s.Swap)
	}
	pod, err := u.runtime().PodSandboxStats(u.ctx(), &cri.PodSandboxStatsRequest{PodSandboxId: u.sandbox})
	if err != nil {
		t.Fatal(err)
	}
	l := pod.Stats.Linux
	if l.Memory.GetUsageBytes().GetValue() < s.Memory.UsageBytes.Value/2 || l.Cpu.GetUsageCoreNanoSeconds().GetValue() == 0 || l.Process.GetProcessCount().GetValue() == 0 || len(l.Containers) != 1 {
		t.Errorf("stats of the pod are %v", l)
	}
	metrics, err := u.runtime().ListPodSandboxMetrics(u.ctx(), &cri.ListPodSandboxMetricsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]uint64{}
	for _, p := range metrics.PodMetrics {
		for _, c := range p.ContainerMetrics {
			for _, m := range c.Metrics {
				found[m.Name] = max(found[m.Name], m.Value.GetValue())
			}
		}
	}
	for name, want := range map[string]uint64{"container_spec_memory_limit_bytes": 80 * mib, "container_spec_cpu_quota": 25500} {
		if got := found[name]; got != want {
			t.Errorf("metric %s is %d, want %d", name, got, want)
		}
	}
}

// outOfMemory makes a second process of a container exceed the memory limit: alone, and
// with memory.oom.group, which the kubelet sets.
func (u *unified) outOfMemory() {
	t := u.t
	for _, group := range []string{"0", "1"} {
		id, _ := u.begin("p", "oom"+group, &cri.LinuxContainerResources{
			MemoryLimitInBytes: 32 * mib, Unified: map[string]string{"memory.oom.group": group},
		}, "await", "/go", "exit", "3")
		resp, err := u.runtime().ExecSync(u.ctx(), &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"/testbin", "eat", "200"}})
		if err != nil || resp.ExitCode != 137 {
			t.Errorf("exec that takes too much: %v, %v", resp, err)
		}
		want := int32(137)
		if group == "0" {
			want = 3 // only that process is killed, and the container exits by itself
			if _, err := u.runtime().ExecSync(u.ctx(), &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"/testbin", "write", "/go", "on"}}); err != nil {
				t.Error(err)
			}
		}
		for range 600 {
			resp, err := u.runtime().ContainerStatus(u.ctx(), &cri.ContainerStatusRequest{ContainerId: id})
			if err != nil {
				t.Fatal(err)
			}
			if s := resp.Status; s.State == cri.ContainerState_CONTAINER_EXITED {
				if s.ExitCode != want || s.Reason != "OOMKilled" {
					t.Errorf("memory.oom.group=%s: the container exited with %d, %s; want %d, OOMKilled", group, s.ExitCode, s.Reason, want)
				}
				want = -1
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if want != -1 {
			t.Errorf("memory.oom.group=%s: the container did not exit", group)
		}
	}
}

// privileged runs a container in the host's cgroup namespace. It has a bind mount of the host's
// cgroups: a new mount of cgroup2 would change the options of the host's, and lose nsdelegate, for
// example.
func (u *unified) privileged() {
	t := u.t
	before, err := kernel.MountOn("/sys/fs/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	config, err := u.sandboxConfig("privileged", []string{"host-network"})
	if err != nil {
		t.Fatal(err)
	}
	config.Linux.SecurityContext.Privileged = true
	sb := u.run(config)
	resp, err := u.runtime().CreateContainer(u.ctx(), &cri.CreateContainerRequest{
		PodSandboxId: sb, SandboxConfig: config,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "privileged"},
			Image:    &cri.ImageSpec{Image: testImage},
			Command:  []string{"/testbin", "sleep", "for-ever"},
			Linux:    &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{Privileged: true}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.runtime().StartContainer(u.ctx(), &cri.StartContainerRequest{ContainerId: resp.ContainerId}); err != nil {
		t.Fatal(err)
	}
	if after, err := kernel.MountOn("/sys/fs/cgroup"); err != nil || after.VFSOptions != before.VFSOptions {
		t.Errorf("the host's cgroups had the options %s, and after the start of a privileged container %v, %v", before.VFSOptions, after, err)
	}
	in, err := u.runtime().ExecSync(u.ctx(), &cri.ExecSyncRequest{ContainerId: resp.ContainerId, Cmd: []string{"/testbin", "ls", "/sys/fs/cgroup" + strings.TrimPrefix(u.pod, "/sys/fs/cgroup")}})
	if err != nil || !strings.Contains(string(in.GetStdout()), "cgroup.procs") {
		t.Errorf("the host's cgroups are not in a privileged container: %v, %v", in, err)
	}
	if _, err := u.runtime().RemovePodSandbox(u.ctx(), &cri.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Error(err)
	}
}

// ownCgroup runs a pod whose creator names no cgroup; nothing of it is left afterwards, in
// systemd either.
func (u *unified) ownCgroup() {
	t := u.t
	config, err := u.sandboxConfig("own", []string{"host-network", "share-pid"})
	if err != nil {
		t.Fatal(err)
	}
	id := u.run(config)
	c, pid := u.begin("own", "c", nil, "sleep", "for-ever")
	dirs, err := cgroupsOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	u.check("without limits", dirs[""], map[string]string{"memory.max": "max", "pids.max": "max", "cpu.max": "max 100000"})
	u.systemctl("daemon-reload")
	u.check("without limits, after daemon-reload", dirs[""], map[string]string{"memory.max": "max", "pids.max": "max", "cpu.max": "max 100000"})
	for _, sb := range []string{id, u.sandbox} {
		if _, err := u.runtime().StopPodSandbox(u.ctx(), &cri.StopPodSandboxRequest{PodSandboxId: sb}); err != nil {
			t.Error(err)
		}
		if _, err := u.runtime().RemovePodSandbox(u.ctx(), &cri.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
			t.Error(err)
		}
	}
	for _, dir := range []string{dirs[""], filepath.Dir(dirs[""]), u.boxDir} {
		if testenv.Exists(dir) {
			t.Errorf("%s is left", dir)
		}
	}
	units := u.systemctl("list-units", "--all", "--no-legend", "--plain", "crisp-*")
	for _, id := range []string{id, c, u.box} {
		if strings.Contains(units, id) {
			t.Errorf("units are left:\n%s", units)
		}
	}
}
