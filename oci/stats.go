package oci

import (
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/opencontainers/cgroups"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Stats are the kernel's counters for a cgroup and everything below it, read at once. Counters
// that a kernel or a cgroup version lacks are 0 or nil.
type Stats struct {
	At        time.Time
	CPU       CPUStats
	Memory    MemoryStats
	Swap      SwapStats
	IO        IOStats
	Pids      PidStats
	HugePages []HugePageStats // one for each size; nil without the controller
}

// CPUStats counts nanoseconds, and periods of the CPU quota.
type CPUStats struct {
	UsageNs, UserNs, SystemNs              uint64
	Periods, ThrottledPeriods, ThrottledNs uint64
	PSI                                    *PSI // nil if the kernel does not count it
}

// MemoryStats counts bytes, and faults.
type MemoryStats struct {
	Usage                       uint64 // everything charged
	WorkingSet                  uint64 // Usage less InactiveFile
	RSS                         uint64 // anonymous pages
	Cache                       uint64 // file pages
	ActiveFile, InactiveFile    uint64 // pages of the kernel's two lists of them
	MappedFile                  uint64
	Kernel                      uint64
	Limit                       uint64 // 0 = none
	Reservation                 uint64 // memory protected when memory is short; 0 = none
	Available                   uint64 // Limit less WorkingSet; 0 without a limit
	Peak                        uint64 // highest Usage; since Linux 5.19 on cgroup v2
	FailCount                   uint64 // how often Limit was hit
	PageFaults, MajorPageFaults uint64
	PSI                         *PSI // likewise
}

// SwapStats counts bytes.
type SwapStats struct {
	Usage     uint64
	Limited   bool
	Limit     uint64 // if Limited
	Available uint64 // Limit less Usage
}

// IOStats counts what reached block devices.
type IOStats struct {
	Devices []DeviceIO // those in use
	PSI     *PSI       // likewise
}

// DeviceIO counts what reached one block device.
type DeviceIO struct {
	Device                               string // "8:0", its major and minor number
	ReadBytes, WriteBytes, Reads, Writes uint64
}

// PidStats counts tasks.
type PidStats struct {
	Current uint64
	Limit   uint64 // 0 = none
}

// HugePageStats counts bytes of huge pages of one size.
type HugePageStats struct {
	Size  string // "2MB"
	Usage uint64
	Max   uint64 // highest Usage; equal to Usage on v2, which does not record it
}

// PSI is pressure stall information (Documentation/accounting/psi.rst).
type PSI struct{ Some, Full PSIData }

// PSIData is one line of it.
type PSIData struct {
	Total                uint64 // microseconds
	Avg10, Avg60, Avg300 float64
}

// Stats reads all counters of a live container (else fault.WrongState).
func (c *Container) Stats() (Stats, error) {
	if c.elsewhere() {
		return c.shimStats()
	}
	return c.read(func(dirs map[string]string) (Stats, error) {
		s, _, err := readStats(dirs, nil, true)
		return s, err
	})
}

// Usage reads only the counters in CRI's statistics: CPU usage, memory usage with its judged
// parts and its limit, all of swap, the number of tasks, and pressure. It is fast enough to be
// called every few seconds for all containers.
func (c *Container) Usage() (Stats, error) {
	if c.elsewhere() {
		return c.shimStats()
	}
	return c.read(c.counters.read)
}

func (c *Container) read(read func(dirs map[string]string) (Stats, error)) (Stats, error) {
	st := c.status.Load()
	if st.Pid == 0 || len(st.Cgroups) == 0 {
		return Stats{}, fault.WrongState.Errorf("container %s is %s: it has no counters", c.id, st.State)
	}
	s, err := read(st.Cgroups)
	if errors.Is(err, fs.ErrNotExist) {
		return s, fault.WrongState.Errorf("container %s has just ended: its counters are gone", c.id)
	}
	return s, err
}

// Usage reads the same counters of the sandbox's cgroup, its own or the caller's. Without one:
// fault.WrongState.
func (sb *Sandbox) Usage() (Stats, error) {
	dirs, err := cgroupDirs(sb.CgroupParent())
	if err != nil {
		return Stats{}, err
	}
	s, err := sb.counters.read(dirs)
	if s.Pids.Current == 0 && sb.elsewhere() {
		if reported, err := sb.rt.shimStats(sb.id); err == nil {
			return reported, nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return s, fault.WrongState.Errorf("sandbox %s is %s: its cgroup is gone", sb.id, sb.State())
	}
	return s, err
}

// readStats reads the counters of a cgroup: all of them, or those of Usage. kept may be nil.
// stale: a kept file belongs to a removed cgroup. fs.ErrNotExist: there is no cgroup.
func readStats(dirs map[string]string, kept *keptFiles, all bool) (s Stats, stale bool, err error) {
	g := openGroup(dirs, kept)
	defer g.close()
	s.At = time.Now()
	// With a v1 memory controller the machine is v1 or hybrid, and a v2 directory counts
	// nothing.
	main := ""
	if _, v1 := dirs["memory"]; v1 {
		main = "memory"
	}
	fresh := kept == nil || len(kept.files) == 0 // otherwise the files show whether the cgroup is gone
	if main == "" {
		s.usageV2(g)
	} else {
		s.usageV1(g)
	}
	s.Pids.Current = g.number(pidsOf(main), "pids.current")
	// Pressure is counted in every v2 directory, on a hybrid host too, where the v2 hierarchy
	// may also have the hugetlb controller.
	s.CPU.PSI = g.psi("cpu.pressure")
	s.Memory.PSI = g.psi("memory.pressure")
	s.IO.PSI = g.psi("io.pressure")
	if all {
		s.readRest(g, main)
	}
	if fresh { // last: it may be removed meanwhile
		if _, err := os.Stat(dirs[main]); err != nil {
			return s, false, err
		}
	}
	// Not below 0: counters are not read at one instant.
	s.Memory.WorkingSet = s.Memory.Usage - min(s.Memory.Usage, s.Memory.InactiveFile)
	s.Memory.Available = s.Memory.Limit - min(s.Memory.Limit, s.Memory.WorkingSet)
	s.Swap.Available = s.Swap.Limit - min(s.Swap.Limit, s.Swap.Usage)
	return s, g.stale, nil
}

// pidsOf returns the hierarchy of the pids controller, given that of the memory controller.
func pidsOf(main string) string {
	if main == "" {
		return ""
	}
	return "pids"
}

// readRest reads what Usage leaves out.
func (s *Stats) readRest(g *groupFiles, main string) {
	if main == "" {
		s.restV2(g)
	} else {
		s.restV1(g)
		s.HugePages = hugePagesV1(g, pageSizes())
	}
	s.Pids.Limit = g.number(pidsOf(main), "pids.max")
	if s.HugePages == nil {
		s.HugePages = hugePagesV2(g, pageSizes())
	}
}

func (s *Stats) usageV2(g *groupFiles) {
	c, m := &s.CPU, &s.Memory
	g.numbers("", "cpu.stat",
		counter{"usage_usec", &c.UsageNs},
		counter{"user_usec", &c.UserNs},
		counter{"system_usec", &c.SystemNs},
		counter{"nr_periods", &c.Periods},
		counter{"nr_throttled", &c.ThrottledPeriods},
		counter{"throttled_usec", &c.ThrottledNs},
	)
	for _, t := range []*uint64{&c.UsageNs, &c.UserNs, &c.SystemNs, &c.ThrottledNs} {
		*t *= 1000
	}
	g.numbers("", "memory.stat",
		counter{"active_file", &m.ActiveFile},
		counter{"inactive_file", &m.InactiveFile},
		counter{"anon", &m.RSS},
		counter{"file", &m.Cache},
		counter{"file_mapped", &m.MappedFile},
		counter{"kernel", &m.Kernel},
		counter{"pgfault", &m.PageFaults},
		counter{"pgmajfault", &m.MajorPageFaults},
	)
	m.Usage = g.number("", "memory.current")
	m.Limit = g.number("", "memory.max")
	s.Swap.Usage = g.number("", "memory.swap.current")
	s.Swap.Limit, s.Swap.Limited = g.limit("", "memory.swap.max")
}

func (s *Stats) restV2(g *groupFiles) {
	s.Memory.Peak = g.number("", "memory.peak")
	s.Memory.Reservation = g.number("", "memory.low")
	g.numbers("", "memory.events", counter{"max", &s.Memory.FailCount})
	s.IO.Devices = g.ioStat()
}

// nsPerTick: the kernel reports times in USER_HZ, 100 on every architecture that Go supports
// (time(7)).
const nsPerTick = 1e9 / 100

func (s *Stats) usageV1(g *groupFiles) {
	s.CPU.UsageNs = g.number("cpuacct", "cpuacct.usage")
	m := &s.Memory
	g.numbers("memory", "memory.stat",
		counter{"total_active_file", &m.ActiveFile},
		counter{"total_inactive_file", &m.InactiveFile},
		counter{"total_rss", &m.RSS},
		counter{"total_cache", &m.Cache},
		counter{"total_mapped_file", &m.MappedFile},
		counter{"total_pgfault", &m.PageFaults},
		counter{"total_pgmajfault", &m.MajorPageFaults},
		counter{"total_swap", &s.Swap.Usage},
	)
	m.Usage = g.number("memory", "memory.usage_in_bytes")
	m.Limit = bounded(g.number("memory", "memory.limit_in_bytes"))
	// memsw counts memory and swap together.
	if both := bounded(g.number("memory", "memory.memsw.limit_in_bytes")); both > 0 {
		s.Swap.Limit, s.Swap.Limited = both-min(both, m.Limit), true
	}
}

func (s *Stats) restV1(g *groupFiles) {
	c := &s.CPU
	g.numbers("cpuacct", "cpuacct.stat", counter{"user", &c.UserNs}, counter{"system", &c.SystemNs})
	c.UserNs, c.SystemNs = c.UserNs*nsPerTick, c.SystemNs*nsPerTick
	g.numbers("cpu", "cpu.stat",
		counter{"nr_periods", &c.Periods},
		counter{"nr_throttled", &c.ThrottledPeriods},
		counter{"throttled_time", &c.ThrottledNs},
	)
	m := &s.Memory
	m.Kernel = g.number("memory", "memory.kmem.usage_in_bytes")
	m.Peak = g.number("memory", "memory.max_usage_in_bytes")
	m.Reservation = bounded(g.number("memory", "memory.soft_limit_in_bytes"))
	m.FailCount = g.number("memory", "memory.failcnt")
	s.IO.Devices = g.blkio()
}

// pageSizes are the sizes of huge pages that the kernel supports, as written in the names of
// cgroup files. They are fixed at boot.
var pageSizes = sync.OnceValue(cgroups.HugePageSizes)

func hugePagesV1(g *groupFiles, sizes []string) []HugePageStats {
	return hugePages(g, "hugetlb", sizes, ".usage_in_bytes", ".max_usage_in_bytes")
}

func hugePagesV2(g *groupFiles, sizes []string) []HugePageStats {
	return hugePages(g, "", sizes, ".current", ".current")
}

// hugePages returns nil if the controller is not there.
func hugePages(g *groupFiles, controller string, sizes []string, usage, highest string) []HugePageStats {
	var list []HugePageStats
	for _, size := range sizes {
		file := "hugetlb." + size
		if !g.has(controller, file+usage) {
			return nil
		}
		list = append(list, HugePageStats{Size: size, Usage: g.number(controller, file+usage), Max: g.number(controller, file+highest)})
	}
	return list
}

// bounded converts v1's "no limit", the largest page-aligned number, to 0.
func bounded(limit uint64) uint64 {
	if limit > 1<<62 {
		return 0
	}
	return limit
}
