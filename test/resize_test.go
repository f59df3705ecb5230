package test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// update is "container update NAME FIELD=VALUE...": memory and swap in MiB,
// cpu-quota, cpu-period, cpu-shares, cpus, oom-score-adj.
func (n *node) update(ctx context.Context, id string, fields []string) error {
	r := &cri.LinuxContainerResources{}
	numbers := map[string]struct {
		to   *int64
		unit int64
	}{
		"memory": {&r.MemoryLimitInBytes, 1 << 20}, "swap": {&r.MemorySwapLimitInBytes, 1 << 20},
		"cpu-quota": {&r.CpuQuota, 1}, "cpu-period": {&r.CpuPeriod, 1}, "cpu-shares": {&r.CpuShares, 1}, "oom-score-adj": {&r.OomScoreAdj, 1},
	}
	for _, f := range fields {
		key, value, _ := strings.Cut(f, "=")
		if key == "cpus" {
			r.CpusetCpus = value
			continue
		}
		field, ok := numbers[key]
		v, err := strconv.ParseInt(value, 10, 64)
		if !ok || err != nil {
			return fmt.Errorf("unknown field %q", f)
		}
		*field.to = v * field.unit
	}
	_, err := n.runtime().UpdateContainerResources(ctx, &cri.UpdateContainerResourcesRequest{ContainerId: id, Linux: r})
	return err
}

// limits is "container limits NAME": the limits in the status, then, if the container runs,
// those in the kernel, with the same names on cgroup v1 and v2.
func (n *node) limits(ctx context.Context, ts *testscript.TestScript, id string) error {
	resp, err := n.runtime().ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return err
	}
	r := resp.Status.GetResources().GetLinux()
	fmt.Fprintf(ts.Stdout(), "status: memory=%d quota=%d period=%d shares=%d oom_score_adj=%d\n",
		r.GetMemoryLimitInBytes(), r.GetCpuQuota(), r.GetCpuPeriod(), r.GetCpuShares(), r.GetOomScoreAdj())
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(resp.Info["info"]), &info); err != nil || info.Pid == 0 {
		return err
	}
	dirs, err := cgroupsOf(info.Pid)
	if err != nil {
		return err
	}
	read := func(controller, file string) string {
		data, rerr := os.ReadFile(filepath.Join(dirs[controller], file))
		if err == nil {
			err = rerr
		}
		return strings.TrimSpace(string(data))
	}
	var memory, quota, period string
	if dirs["memory"] != "" {
		memory = read("memory", "memory.limit_in_bytes")
		quota, period = read("cpu", "cpu.cfs_quota_us"), read("cpu", "cpu.cfs_period_us")
	} else {
		memory = read("", "memory.max")
		quota, period, _ = strings.Cut(read("", "cpu.max"), " ")
	}
	score, serr := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", info.Pid))
	if err == nil {
		err = serr
	}
	fmt.Fprintf(ts.Stdout(), "kernel: memory=%s quota=%s period=%s oom_score_adj=%s\n", memory, quota, period, strings.TrimSpace(string(score)))
	return err
}

// cgroupsOf returns the directories of a process's cgroups by controller; "" is the v2 one.
func cgroupsOf(pid int) (map[string]string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, err
	}
	dirs := make(map[string]string)
	for line := range strings.Lines(string(data)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		for controller := range strings.SplitSeq(fields[1], ",") {
			dirs[controller] = filepath.Join("/sys/fs/cgroup", controller, fields[2])
		}
	}
	return dirs, nil
}
