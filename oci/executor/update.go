package executor

import (
	"encoding/json"
	"maps"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// update is "update": what the request sets is laid over what is in force and
// applied at once; if part of it is refused, all of it is taken back.
func (x *Executor) update(req wire.UpdateRequest) error {
	var r specs.LinuxResources
	if err := json.Unmarshal(req.Resources, &r); err != nil {
		return fault.Invalid.Errorf("resources: %w", err)
	}
	c, err := x.runs(req.ID)
	if err != nil {
		return err
	}
	x.gate.enter()
	defer x.gate.leave()
	c.updating.Lock()
	defer c.updating.Unlock()
	lc, err := c.lease.take(x.root, c.ID)
	if err != nil {
		return err
	}
	config := lc.Config()
	group := *config.Cgroups
	now := *group.Resources
	overlay(&now, &r)
	// Device rules are not to be changed here, and those in force may be more
	// than libcontainer knows of.
	now.SkipDevices = true
	group.Resources = &now
	config.Cgroups = &group
	err = lc.Set(config)
	// Set has put SkipDevices into the view, with which nothing can be started;
	// the state that it saved has not.
	c.lease.drop()
	if err != nil {
		return fault.Invalid.Errorf("update container %s: %w", c.ID, err)
	}
	return nil
}

// overlay lays what r sets over now.
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
		if c.Burst != nil {
			now.CpuBurst = c.Burst
		}
		if c.Idle != nil {
			now.CPUIdle = c.Idle
		}
		if c.Cpus != "" {
			now.CpusetCpus = c.Cpus
		}
		if c.Mems != "" {
			now.CpusetMems = c.Mems
		}
	}
	if r.Pids != nil && r.Pids.Limit != nil {
		now.PidsLimit = r.Pids.Limit
	}
	if len(r.HugepageLimits) > 0 {
		now.HugetlbLimit = nil
		for _, l := range r.HugepageLimits {
			now.HugetlbLimit = append(now.HugetlbLimit, &cgroups.HugepageLimit{Pagesize: l.Pagesize, Limit: l.Limit})
		}
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
