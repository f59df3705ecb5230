package executor

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	systemdDbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/systemd"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// withoutTasksMax sets no limit on processes if none was requested: systemd has a default for
// every scope (DefaultTasksMax=). The kubelet limits the pod.
func withoutTasksMax(linux *specs.Linux) {
	if linux.Resources == nil {
		linux.Resources = &specs.LinuxResources{}
	}
	if linux.Resources.Pids == nil {
		none := int64(-1)
		linux.Resources.Pids = &specs.LinuxPids{Limit: &none}
	}
}

// unitTime bounds a call to systemd.
const unitTime = 30 * time.Second

// scopeOf returns the name of the systemd scope of a container's cgroup; "" if it is not a scope
// on v2.
func scopeOf(paths map[string]string) string {
	if unit := filepath.Base(paths[""]); strings.HasSuffix(unit, ".scope") && cgroups.IsCgroup2UnifiedMode() {
		return unit
	}
	return ""
}

// restoreUnit tells systemd the limits that were restored behind its back: otherwise it would
// write its own values the next time that it goes through its units, as for `systemctl
// daemon-reload`.
func (s limitFiles) restoreUnit(unit string) error {
	if unit == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), unitTime)
	defer cancel()
	conn, err := systemdDbus.NewWithContext(ctx)
	if err != nil {
		return fmt.Errorf("reach systemd: %w", err)
	}
	defer conn.Close()
	if err := conn.SetUnitPropertiesContext(ctx, unit, true, s.properties()...); err != nil {
		return fmt.Errorf("put back %s: %w", unit, err)
	}
	return nil
}

// properties returns systemd's names and values of the limits in the files:
// systemd.resource-control(5), org.freedesktop.systemd1(5).
func (s limitFiles) properties() []systemdDbus.Property {
	var list []systemdDbus.Property
	add := func(name string, value any) {
		list = append(list, systemdDbus.Property{Name: name, Value: dbus.MakeVariant(value)})
	}
	for file, was := range s {
		was = strings.TrimSpace(was)
		switch name := filepath.Base(file); name {
		case "memory.max", "memory.high", "memory.low", "memory.min", "memory.swap.max", "pids.max", "cpu.weight":
			if n, ok := maxOr(was); ok {
				add(map[string]string{
					"memory.max": "MemoryMax", "memory.high": "MemoryHigh", "memory.low": "MemoryLow", "memory.min": "MemoryMin",
					"memory.swap.max": "MemorySwapMax", "pids.max": "TasksMax", "cpu.weight": "CPUWeight",
				}[name], n)
			}
		case "cpu.max":
			quota, period, _ := strings.Cut(was, " ")
			q, ok1 := maxOr(quota)
			p, ok2 := maxOr(period)
			if !ok1 || !ok2 || p == 0 {
				continue
			}
			if q != math.MaxUint64 {
				q = q * 1_000_000 / p
			}
			add("CPUQuotaPeriodUSec", p)
			add("CPUQuotaPerSecUSec", q)
		case "cpuset.cpus", "cpuset.mems":
			bits := []byte{} // no set of its own
			if was != "" {
				var err error
				if bits, err = systemd.RangeToBits(was); err != nil {
					continue
				}
			}
			add(map[string]string{"cpuset.cpus": "AllowedCPUs", "cpuset.mems": "AllowedMemoryNodes"}[name], bits)
		}
	}
	return list
}

// maxOr reads a number, or "max".
func maxOr(text string) (uint64, bool) {
	if text == "max" {
		return math.MaxUint64, true
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}
