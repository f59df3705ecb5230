package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A Change is a change to a container by Apply. Nil fields change nothing.
type Change struct {
	Resources   *specs.LinuxResources // its nil fields change nothing, either
	OOMScoreAdj *int                  // of all its processes
	Extra       []byte                // what Extra returns
}

// applyTime bounds a change, for which the executor may have to wait for systemd or for
// an engine.
const applyTime = 2 * time.Minute

// Apply changes a container that was created or runs, atomically, one change after another. The
// container's Config shows the result, which outlives the daemon.
//
// A change abandoned by ctx continues: the executor may be about to make it, or to refuse it,
// and the record has to say which.
func (c *Container) Apply(ctx context.Context, ch Change) error {
	select {
	case c.applying <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	result := make(chan error, 1)
	c.rt.work.Go(func() {
		defer func() { <-c.applying }()
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), applyTime)
		defer cancel()
		err := fault.Protect(func() error { return c.apply(own, ch) })
		result <- err
		if err != nil && ctx.Err() != nil {
			c.rt.log.WarnContext(ctx, "change failed after its caller had left", "container", c.id, "err", err)
		}
	})
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// apply does the work of Apply, one call at a time.
//
// The record is written first: after a crash before the kernel has the change, Resources
// corrects the record by the kernel's values, while an unrecorded change would be undone by the
// next one.
func (c *Container) apply(ctx context.Context, ch Change) (err error) {
	st := c.status.Load().State
	if st != Created && st != Running {
		return fault.WrongState.Errorf("container %s is %s: cannot update it", c.id, st)
	}
	var steps undo.Stack
	defer steps.RunIf(&err)
	var was ContainerConfig
	err = c.edit(func(cfg *ContainerConfig) error {
		if now := c.status.Load().State; st == Created && now != Created {
			return fault.WrongState.Errorf("container %s is %s: cannot update it", c.id, now)
		}
		was = *cfg
		return ch.record(cfg)
	})
	if err != nil || st == Created {
		return err
	}
	steps.Add("record", func() error {
		err := c.edit(func(cfg *ContainerConfig) error {
			cfg.Spec = was.Spec
			if ch.Extra != nil {
				cfg.Extra = was.Extra
			}
			return nil
		})
		if errors.Is(err, fault.WrongState) {
			return nil // it is being removed
		}
		return err
	})
	req := wire.UpdateRequest{ID: c.id, OOMScoreAdj: ch.OOMScoreAdj}
	if ch.Resources != nil {
		if req.Resources, err = json.Marshal(ch.Resources); err != nil {
			return fmt.Errorf("encode resources of container %s: %w", c.id, err)
		}
	}
	return c.notRunning("update", c.rt.link.again(ctx, wire.MethodUpdate, req, nil))
}

// record writes the change into cfg. What cfg points to is shared, so it is copied.
func (ch Change) record(cfg *ContainerConfig) error {
	spec := *cfg.Spec
	if ch.Resources != nil {
		linux := specs.Linux{}
		if spec.Linux != nil {
			linux = *spec.Linux
		}
		merged, err := merge(linux.Resources, ch.Resources)
		if err != nil {
			return fmt.Errorf("resources of container %s: %w", cfg.ID, err)
		}
		linux.Resources = merged
		spec.Linux = &linux
	}
	if ch.OOMScoreAdj != nil && spec.Process != nil {
		process := *spec.Process
		process.OOMScoreAdj = ch.OOMScoreAdj
		spec.Process = &process
	}
	cfg.Spec = &spec
	if ch.Extra != nil {
		cfg.Extra = ch.Extra
	}
	return nil
}

// merge returns a copy of old with the set fields of change. The JSON of LinuxResources omits
// unset fields, so decoding one onto the other merges them.
func merge(old, change *specs.LinuxResources) (*specs.LinuxResources, error) {
	merged := &specs.LinuxResources{}
	for _, res := range []*specs.LinuxResources{old, change} {
		if res == nil {
			continue
		}
		data, err := json.Marshal(res)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(data, merged); err != nil {
			return nil, err
		}
	}
	return merged, nil
}

// Resources returns the limits that the kernel enforces on the container, read from its cgroup;
// nil if it is not alive, or its cgroup has just gone. It omits limits that were neither
// requested nor set by others. Where the kernel stores a value coarser than requested (whole
// pages, weights instead of shares), it returns the requested value.
func (c *Container) Resources() *specs.LinuxResources {
	st := c.status.Load()
	if c.elsewhere() { // only the shim knows; it was given what was asked for
		if linux := c.record.Load().Config.Spec.Linux; linux != nil {
			return linux.Resources
		}
		return nil
	}
	if st.Pid == 0 || len(st.Cgroups) == 0 {
		return nil
	}
	asked := &specs.LinuxResources{}
	if linux := c.record.Load().Config.Spec.Linux; linux != nil && linux.Resources != nil {
		asked = linux.Resources
	}
	return readResources(st.Cgroups, asked)
}

func readResources(dirs map[string]string, asked *specs.LinuxResources) *specs.LinuxResources {
	out := &specs.LinuxResources{}
	cpu, memory := asked.CPU, asked.Memory
	if cpu == nil {
		cpu = &specs.LinuxCPU{}
	}
	if memory == nil {
		memory = &specs.LinuxMemory{}
	}
	if dir, v1 := dirs["memory"]; v1 {
		if _, err := os.Stat(dir); err != nil {
			return nil
		}
		out.CPU, out.Memory = cpuV1(dirs["cpu"], dirs["cpuset"], cpu), memoryV1(dir, memory)
		out.HugepageLimits = hugePageLimits(filepath.Join(dirs["hugetlb"], "hugetlb."), ".limit_in_bytes", asked.HugepageLimits)
		return out
	}
	dir := dirs[""]
	if _, err := os.Stat(dir); err != nil {
		return nil
	}
	out.CPU, out.Memory = cpuV2(dir, cpu), memoryV2(dir, memory)
	out.HugepageLimits = hugePageLimits(filepath.Join(dir, "hugetlb."), ".max", asked.HugepageLimits)
	for name, want := range asked.Unified {
		if out.Unified == nil {
			out.Unified = make(map[string]string)
		}
		out.Unified[name] = unifiedNow(filepath.Join(dir, name), want)
	}
	return out
}

// The kernel's defaults (Documentation/scheduler/sched-bwc.rst,
// admin-guide/cgroup-v1/cpuacct.rst, admin-guide/cgroup-v2.rst).
const (
	defaultShares = 1024
	defaultWeight = 100
	defaultPeriod = 100_000
)

func cpuV1(dir, cpuset string, asked *specs.LinuxCPU) *specs.LinuxCPU {
	out := *asked
	if now := readNumber(filepath.Join(dir, "cpu.shares")); now != 0 && (asked.Shares != nil || now != defaultShares) {
		out.Shares = &now
	}
	quota, ok := readLimit(filepath.Join(dir, "cpu.cfs_quota_us"))
	if ok {
		setQuota(&out, quota, readNumber(filepath.Join(dir, "cpu.cfs_period_us")))
	}
	setCPUs(&out, cpuset)
	return &out
}

func cpuV2(dir string, asked *specs.LinuxCPU) *specs.LinuxCPU {
	out := *asked
	now := readNumber(filepath.Join(dir, "cpu.weight"))
	switch {
	case now == 0 || asked.Shares != nil && cgroups.ConvertCPUSharesToCgroupV2Value(*asked.Shares) == now:
	case asked.Shares != nil || now != defaultWeight:
		shares := sharesOf(now)
		out.Shares = &shares
	}
	if data, err := os.ReadFile(filepath.Join(dir, "cpu.max")); err == nil {
		first, second, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
		quota, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			quota = -1 // max
		}
		period, _ := strconv.ParseUint(second, 10, 64)
		if asked.Quota != nil && strings.HasSuffix(dir, ".scope") && wholePercent(*asked.Quota, period) == quota {
			quota = *asked.Quota
		}
		setQuota(&out, quota, period)
	}
	setCPUs(&out, dir)
	return &out
}

// wholePercent returns what libcontainer makes of a quota under systemd, which takes whole
// percents of a CPU.
func wholePercent(quota int64, period uint64) int64 {
	if quota <= 0 || period == 0 {
		return quota
	}
	const percent = 10_000 // microseconds of a second
	perSecond := uint64(quota) * 1_000_000 / period
	if perSecond%percent == 0 {
		return quota
	}
	return int64((perSecond/percent + 1) * percent * period / 1_000_000)
}

// sharesOf returns the smallest number of shares that converts to the weight.
func sharesOf(weight uint64) uint64 {
	least, most := uint64(2), uint64(262144) // MIN_SHARES and MAX_SHARES of kernel/sched
	for least < most {
		if half := (least + most) / 2; cgroups.ConvertCPUSharesToCgroupV2Value(half) >= weight {
			most = half
		} else {
			least = half + 1
		}
	}
	return least
}

// setQuota sets quota (-1 = none) and period, unless they are defaults that were not requested.
func setQuota(cpu *specs.LinuxCPU, quota int64, period uint64) {
	if cpu.Quota != nil || quota != -1 {
		cpu.Quota = &quota
	}
	if period != 0 && (cpu.Period != nil || quota != -1 || period != defaultPeriod) {
		cpu.Period = &period
	}
}

// setCPUs replaces the requested sets by the kernel's notation of them.
func setCPUs(cpu *specs.LinuxCPU, dir string) {
	for file, set := range map[string]*string{"cpuset.cpus": &cpu.Cpus, "cpuset.mems": &cpu.Mems} {
		if *set == "" {
			continue
		}
		if data, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
			*set = strings.TrimSpace(string(data))
		}
	}
}

func memoryV1(dir string, asked *specs.LinuxMemory) *specs.LinuxMemory {
	out := *asked
	if now, ok := readLimit(filepath.Join(dir, "memory.limit_in_bytes")); ok {
		out.Limit = settle(asked.Limit, now)
	}
	if now, ok := readLimit(filepath.Join(dir, "memory.memsw.limit_in_bytes")); ok {
		out.Swap = settle(asked.Swap, now)
	}
	return &out
}

func memoryV2(dir string, asked *specs.LinuxMemory) *specs.LinuxMemory {
	out := *asked
	limit, ok := readLimit(filepath.Join(dir, "memory.max"))
	if !ok {
		return &out
	}
	out.Limit = settle(asked.Limit, limit)
	// The runtime specification counts memory plus swap, v2 counts swap alone.
	if swap, ok := readLimit(filepath.Join(dir, "memory.swap.max")); ok {
		if swap != -1 && limit != -1 {
			swap += limit
		} else {
			swap = -1
		}
		out.Swap = settle(asked.Swap, swap)
	}
	return &out
}

// readLimit reads a file with a limit; -1 = none.
func readLimit(path string) (int64, bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	text := strings.TrimSpace(string(data))
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case text == "max" || err == nil && n > math.MaxInt64/2: // v1: the largest number of pages
		return -1, true
	case err != nil:
		return 0, false
	}
	return n, true
}

var pageSize = int64(os.Getpagesize())

// settle returns asked if the kernel rounds it to now; nil if there is no limit and none was
// requested.
func settle(asked *int64, now int64) *int64 {
	switch {
	case asked == nil && now == -1:
		return nil
	case asked != nil && (*asked == now || *asked/pageSize*pageSize == now && now > 0):
		return asked
	}
	return &now
}

// hugePageLimits reads the limits of the requested page sizes.
func hugePageLimits(prefix, suffix string, asked []specs.LinuxHugepageLimit) []specs.LinuxHugepageLimit {
	var list []specs.LinuxHugepageLimit
	for _, l := range asked {
		if now, ok := readLimit(prefix + l.Pagesize + suffix); ok {
			l.Limit = uint64(now) // -1, no limit, becomes the largest number
		}
		list = append(list, l)
	}
	return list
}

// unifiedNow reads a file of v2. If it has several lines it returns asked, as each line is about
// another device.
func unifiedNow(path, asked string) string {
	data, err := os.ReadFile(path)
	now := strings.TrimSpace(string(data))
	if err != nil || strings.Contains(now, "\n") {
		return asked
	}
	want, werr := strconv.ParseInt(asked, 10, 64)
	got, gerr := strconv.ParseInt(now, 10, 64)
	if werr == nil && gerr == nil && want/pageSize*pageSize == got {
		return asked
	}
	return now
}
