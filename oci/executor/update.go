package executor

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/godbus/dbus/v5"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fscommon"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/wire"
)

// update serves wire.UpdateRequest: it applies the limits in the request on top of the current
// ones; if any part is refused, all of it is undone.
func (x *Executor) update(req wire.UpdateRequest) (err error) {
	var r specs.LinuxResources
	if len(req.Resources) > 0 {
		if err := json.Unmarshal(req.Resources, &r); err != nil {
			return fault.Invalid.Errorf("resources: %w", err)
		}
	}
	c, err := x.table.runs(req.ID)
	if err != nil {
		return err
	}
	x.gate.begin()
	defer x.gate.end()
	c.updating.Lock()
	defer c.updating.Unlock()
	paths := c.ref.Cgroups
	if err := fits(c.ID, paths, r.Memory); err != nil {
		return err
	}
	var steps undo.Stack
	defer steps.RunIf(&err)
	score := req.OOMScoreAdj
	if score != nil {
		least := x.limits.atLeast(*score)
		score = &least
		old := make(scores)
		steps.Add("oom_score_adj", old.restore)
		if err := old.replace(paths, least); err != nil {
			return fmt.Errorf("update container %s: %w", c.ID, refusal(err))
		}
	}
	// libcontainer restores the limits that it was given before; limits that were never set stay
	// in force.
	files := readLimitFiles(paths, r.Unified)
	steps.Add("unit", func() error { return files.restoreUnit(scopeOf(paths)) }) // after the files
	steps.Add("limits", files.restore)
	if err := c.runtime.update(&r, score); err != nil {
		if ended := x.table.endsUnder(c); ended != nil {
			return ended
		}
		if ferr := fits(c.ID, paths, r.Memory); ferr != nil { // it has grown meanwhile
			return ferr
		}
		for _, dir := range paths {
			if _, serr := os.Stat(dir); serr != nil {
				return fault.WrongState.Errorf("update container %s, which has lost a cgroup: %w: %w", c.ID, serr, err)
			}
		}
		return fmt.Errorf("update container %s: %w", c.ID, err)
	}
	return nil
}

// refusal gives a failure to set limits its kind: libcontainer, the kernel or systemd refuses a
// value, or it is not the caller's.
func refusal(err error) error {
	var no unix.Errno
	var bus dbus.Error
	kind := fault.Invalid
	switch {
	case errors.As(err, &no):
		kind = kindOfErrno(no)
	case errors.As(err, &bus) && bus.Name != "org.freedesktop.DBus.Error.InvalidArgs", errors.Is(err, dbus.ErrClosed):
		kind = fault.Internal
	}
	return kind.Errorf("%w", err)
}

// kindOfErrno returns the kind of an error of a cgroup file. Those that are refusals are in
// Documentation/admin-guide/cgroup-v2.rst and cpuset(7); a file that does not exist is a limit that
// the kernel does not have.
func kindOfErrno(no unix.Errno) fault.Kind {
	switch no {
	case unix.EINVAL, unix.ERANGE, unix.E2BIG, unix.EACCES, unix.EOPNOTSUPP, unix.ENODEV, unix.ENOENT:
		return fault.Invalid
	case unix.EBUSY:
		return fault.WrongState
	}
	return fault.Internal
}

// fits refuses a memory limit below the container's usage without reclaimable page cache. On v2
// the kernel would accept it, and kill.
func fits(id string, paths map[string]string, m *specs.LinuxMemory) error {
	if m == nil || m.Limit == nil || *m.Limit <= 0 {
		return nil
	}
	dir, usage, cache := paths["memory"], "memory.usage_in_bytes", "total_inactive_file"
	if dir == "" {
		dir, usage, cache = paths[""], "memory.current", "inactive_file"
	}
	used, err := fscommon.GetCgroupParamUint(dir, usage)
	if err != nil {
		return nil // Set will report a missing controller
	}
	idle, err := fscommon.GetValueByKey(dir, "memory.stat", cache)
	if err != nil {
		return nil
	}
	if used-min(used, idle) > uint64(*m.Limit) {
		return fault.WrongState.Errorf("container %s uses %d bytes of memory: cannot limit it to %d", id, used-min(used, idle), *m.Limit)
	}
	return nil
}

// overlaid returns config with r applied on top of its resources. It must not change device
// rules: libcontainer may not know all rules in force.
func overlaid(config configs.Config, r *specs.LinuxResources) configs.Config {
	group := *config.Cgroups
	now := *group.Resources
	overlay(&now, r)
	now.SkipDevices = true
	group.Resources = &now
	config.Cgroups = &group
	return config
}

// overlay sets in now what r sets.
func overlay(now *cgroups.Resources, r *specs.LinuxResources) {
	if m := r.Memory; m != nil {
		set(&now.Memory, m.Limit)
		set(&now.MemoryReservation, m.Reservation)
		set(&now.MemorySwap, m.Swap)
		set(&now.MemoryCheckBeforeUpdate, m.CheckBeforeUpdate)
	}
	if c := r.CPU; c != nil {
		if c.Shares != nil {
			now.CpuShares = *c.Shares
			now.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(*c.Shares)
		}
		set(&now.CpuQuota, c.Quota)
		set(&now.CpuPeriod, c.Period)
		set(&now.CpuRtRuntime, c.RealtimeRuntime)
		set(&now.CpuRtPeriod, c.RealtimePeriod)
		now.CpuBurst, now.CPUIdle = cmp.Or(c.Burst, now.CpuBurst), cmp.Or(c.Idle, now.CPUIdle)
		now.CpusetCpus, now.CpusetMems = cmp.Or(c.Cpus, now.CpusetCpus), cmp.Or(c.Mems, now.CpusetMems)
	}
	if r.Pids != nil {
		now.PidsLimit = cmp.Or(r.Pids.Limit, now.PidsLimit)
	}
	for _, l := range r.HugepageLimits {
		now.HugetlbLimit = append(slices.DeleteFunc(slices.Clone(now.HugetlbLimit), func(old *cgroups.HugepageLimit) bool {
			return old.Pagesize == l.Pagesize
		}), &cgroups.HugepageLimit{Pagesize: l.Pagesize, Limit: l.Limit})
	}
	if len(r.Unified) > 0 {
		now.Unified = maps.Clone(now.Unified)
		if now.Unified == nil {
			now.Unified = make(map[string]string)
		}
		maps.Copy(now.Unified, r.Unified)
	}
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}
