// Package limits sets and restores what a container may use, and counts what the OOM killer ends
// because of it. It knows cgroups by their paths, and no container.
package limits

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	systemdDbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fscommon"
	"github.com/opencontainers/cgroups/systemd"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/userns"
)

// Refusal gives a failure to set limits its kind: libcontainer, the kernel or systemd refuses a
// value, or it is not the caller's.
func Refusal(err error) error {
	var no unix.Errno
	var bus dbus.Error
	kind := fault.Invalid
	switch {
	case errors.As(err, &no):
		kind = KindOf(no)
	case errors.As(err, &bus) && bus.Name != "org.freedesktop.DBus.Error.InvalidArgs", errors.Is(err, dbus.ErrClosed):
		kind = fault.Internal
	}
	return kind.Errorf("%w", err)
}

// KindOf returns the kind of an error of a cgroup file. Those that are refusals are in
// Documentation/admin-guide/cgroup-v2.rst and cpuset(7); a file that does not exist is a limit that
// the kernel does not have.
func KindOf(no unix.Errno) fault.Kind {
	switch no {
	case unix.EINVAL, unix.ERANGE, unix.E2BIG, unix.EACCES, unix.EOPNOTSUPP, unix.ENODEV, unix.ENOENT:
		return fault.Invalid
	case unix.EBUSY:
		return fault.WrongState
	}
	return fault.Internal
}

// Fits refuses a memory limit below the container's usage without reclaimable page cache. On v2
// the kernel would accept it, and kill.
func Fits(id string, paths map[string]string, m *specs.LinuxMemory) error {
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

// Overlay sets in now what r sets.
func Overlay(now *cgroups.Resources, r *specs.LinuxResources) {
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

// Bounds are what this process can grant others if it lacks CAP_SYS_RESOURCE: no better OOM
// score and no higher hard limit than its own. Containers that request more get that much, as
// otherwise none could start.
type Bounds struct {
	bound bool
	score int // lowest oom_score_adj
	log   *slog.Logger
	once  *sync.Once
}

func ReadBounds(log *slog.Logger) Bounds {
	l := Bounds{log: log, once: new(sync.Once)}
	var data [2]unix.CapUserData
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&head, &data[0]); err != nil || data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0 && userns.Own() == nil {
		return l
	}
	l.bound = true
	if data, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil {
		l.score, _ = strconv.Atoi(strings.TrimSpace(string(data)))
	}
	return l
}

// Clamp lowers p's requests to what it can get, and logs that once.
func (l *Bounds) Clamp(p *specs.Process) {
	if !l.bound {
		return
	}
	if p.OOMScoreAdj != nil {
		score := l.AtLeast(*p.OOMScoreAdj)
		p.OOMScoreAdj = &score
	}
	for i := range p.Rlimits {
		r := &p.Rlimits[i]
		n, ok := Rlimits[r.Type]
		var own unix.Rlimit
		if !ok || unix.Getrlimit(n, &own) != nil || r.Hard <= own.Max {
			continue
		}
		l.warnOnce(r.Type, r.Hard, own.Max)
		r.Hard = own.Max
		r.Soft = min(r.Soft, own.Max)
	}
}

// AtLeast returns the oom_score_adj for a process that requests adj.
func (l *Bounds) AtLeast(adj int) int {
	if !l.bound || adj >= l.score {
		return adj
	}
	l.warnOnce("oom_score_adj", adj, l.score)
	return l.score
}

func (l *Bounds) warnOnce(what string, want, got any) {
	l.once.Do(func() {
		l.log.Warn("containers get lower limits than they ask for: no CAP_SYS_RESOURCE", "limit", what, "want", want, "got", got)
	})
}

// Rlimits are the resources of getrlimit(2) by the runtime spec's names.
var Rlimits = map[string]int{
	"RLIMIT_AS":         unix.RLIMIT_AS,
	"RLIMIT_CORE":       unix.RLIMIT_CORE,
	"RLIMIT_CPU":        unix.RLIMIT_CPU,
	"RLIMIT_DATA":       unix.RLIMIT_DATA,
	"RLIMIT_FSIZE":      unix.RLIMIT_FSIZE,
	"RLIMIT_LOCKS":      unix.RLIMIT_LOCKS,
	"RLIMIT_MEMLOCK":    unix.RLIMIT_MEMLOCK,
	"RLIMIT_MSGQUEUE":   unix.RLIMIT_MSGQUEUE,
	"RLIMIT_NICE":       unix.RLIMIT_NICE,
	"RLIMIT_NOFILE":     unix.RLIMIT_NOFILE,
	"RLIMIT_NPROC":      unix.RLIMIT_NPROC,
	"RLIMIT_RSS":        unix.RLIMIT_RSS,
	"RLIMIT_RTPRIO":     unix.RLIMIT_RTPRIO,
	"RLIMIT_RTTIME":     unix.RLIMIT_RTTIME,
	"RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING,
	"RLIMIT_STACK":      unix.RLIMIT_STACK,
}

// written are the cgroup files that an update may write, by v1 controller; "" are those of v2.
// Some kernels lack some of them.
var written = map[string][]string{
	"memory":  {"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.soft_limit_in_bytes"},
	"cpu":     {"cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.idle", "cpu.rt_runtime_us", "cpu.rt_period_us"},
	"cpuset":  {"cpuset.cpus", "cpuset.mems"},
	"pids":    {"pids.max"},
	"hugetlb": {"hugetlb.*.limit_in_bytes"},
	"": {
		"memory.max", "memory.swap.max", "memory.low", "memory.high", "memory.min",
		"cpu.weight", "cpu.max", "cpu.max.burst", "cpu.idle", "cpuset.cpus", "cpuset.mems", "pids.max", "hugetlb.*.max",
	},
}

// Files are such files, by path, with their contents.
type Files map[string]string

// ReadFiles reads the files that an update of the cgroup may change; unified has the names
// of further v2 files. In a file with several lines, such as io.max, the old lines are restored;
// a new line stays.
func ReadFiles(paths map[string]string, unified map[string]string) Files {
	s := make(Files)
	for controller, dir := range paths {
		if dir == "" {
			continue
		}
		for _, pattern := range written[controller] {
			files, _ := filepath.Glob(filepath.Join(dir, pattern))
			for _, file := range files {
				s.read(file)
			}
		}
	}
	for name := range unified {
		if dir := paths[""]; dir != "" {
			s.read(filepath.Join(dir, name))
		}
	}
	return s
}

func (s Files) read(file string) {
	if data, err := os.ReadFile(file); err == nil {
		s[file] = string(data)
	}
}

// Restore writes back the files that have changed. It makes two passes, as a limit may not
// exceed or undercut another one that is restored later.
func (s Files) Restore() error {
	var errs []error
	for range 2 {
		errs = nil
		for file, was := range s {
			now, err := os.ReadFile(file)
			if err != nil || string(now) == was {
				continue // the container has ended; or it did not change
			}
			if err := restoreFile(file, was); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// restoreFile writes each line separately, as the kernel requires. If the file was empty, it
// writes an empty line.
func restoreFile(file, was string) error {
	for line := range strings.SplitSeq(strings.TrimSuffix(was, "\n"), "\n") {
		err := os.WriteFile(file, []byte(line+"\n"), 0)
		if errors.Is(err, unix.ENOSPC) && line == "" {
			err = inheritCpuset(file)
		}
		if err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("put back: %w", err)
		}
	}
	return nil
}

// inheritCpuset sets a set of CPUs or memory nodes to its effective value while it was empty:
// its parent's. The kernel does not let it become empty again while there are processes
// (validate_change in kernel/cgroup/cpuset.c).
func inheritCpuset(file string) error {
	dir, name := filepath.Split(file)
	all, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Clean(dir)), name+".effective"))
	if err != nil {
		return err
	}
	return os.WriteFile(file, all, 0)
}

// WithoutTasksMax sets no limit on processes if none was requested: systemd has a default for
// every scope (DefaultTasksMax=). The kubelet limits the pod.
func WithoutTasksMax(linux *specs.Linux) {
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

// ScopeOf returns the name of the systemd scope of a container's cgroup; "" if it is not a scope
// on v2.
func ScopeOf(paths map[string]string) string {
	if unit := filepath.Base(paths[""]); strings.HasSuffix(unit, ".scope") && cgroups.IsCgroup2UnifiedMode() {
		return unit
	}
	return ""
}

// RestoreUnit tells systemd the limits that were restored behind its back: otherwise it would
// write its own values the next time that it goes through its units, as for `systemctl
// daemon-reload`.
func (s Files) RestoreUnit(unit string) error {
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
func (s Files) properties() []systemdDbus.Property {
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
