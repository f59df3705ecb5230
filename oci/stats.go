package oci

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/opencontainers/cgroups"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Stats are the kernel's counters for a cgroup and all below it, read in one go. Counters that
// a kernel or a cgroup version lacks are 0 or nil.
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
	PSI                                    *PSI // nil where the kernel counts none
}

// MemoryStats counts bytes, and faults.
type MemoryStats struct {
	Usage                       uint64 // all that is charged
	WorkingSet                  uint64 // Usage less inactive file pages
	RSS                         uint64 // anonymous pages
	Cache                       uint64 // file pages
	MappedFile                  uint64
	Kernel                      uint64
	Limit                       uint64 // 0 = none
	Reservation                 uint64 // memory that is spared when memory is short; 0 = none
	Available                   uint64 // Limit less WorkingSet; 0 without a limit
	Peak                        uint64 // highest Usage; since Linux 5.19 on cgroup v2
	FailCount                   uint64 // how often Limit was hit
	PageFaults, MajorPageFaults uint64
	PSI                         *PSI // likewise
}

// SwapStats counts bytes.
type SwapStats struct {
	Usage     uint64
	Limit     uint64 // 0 = none, or none allowed
	Available uint64 // Limit less Usage
}

// IOStats counts what reached block devices.
type IOStats struct {
	Devices []DeviceIO // those that were used
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
	Max   uint64 // highest Usage; v2 does not count it, there it is Usage
}

// PSI is pressure stall information (Documentation/accounting/psi.rst).
type PSI struct{ Some, Full PSIData }

// PSIData is one line of it.
type PSIData struct {
	Total                uint64 // microseconds
	Avg10, Avg60, Avg300 float64
}

// Stats reads the counters of a container that is alive (else fault.WrongState).
func (c *Container) Stats() (Stats, error) {
	st := c.status.Load()
	if st.Pid == 0 || len(st.Cgroups) == 0 {
		return Stats{}, fault.WrongState.Errorf("container %s is %s: it has no counters", c.id, st.State)
	}
	s, err := readStats(st.Cgroups)
	if errors.Is(err, fs.ErrNotExist) {
		return s, fault.WrongState.Errorf("container %s has just ended: its counters are gone", c.id)
	}
	return s, err
}

// Stats reads the counters of the sandbox's cgroup, be it its own or the
// caller's. Without one: fault.WrongState.
func (sb *Sandbox) Stats() (Stats, error) {
	dirs, err := cgroupDirs(sb.CgroupParent())
	if err != nil {
		return Stats{}, err
	}
	s, err := readStats(dirs)
	if errors.Is(err, fs.ErrNotExist) {
		return s, fault.WrongState.Errorf("sandbox %s is %s: its cgroup is gone", sb.id, sb.State())
	}
	return s, err
}

// readStats reads all counters of a cgroup. fs.ErrNotExist = there is none.
func readStats(dirs map[string]string) (Stats, error) {
	s := Stats{At: time.Now()}
	// With a memory controller of v1 the machine is v1 or hybrid, and a v2
	// directory counts nothing.
	if _, v1 := dirs["memory"]; v1 {
		if _, err := os.Stat(dirs["memory"]); err != nil {
			return s, err
		}
		s.readV1(dirs)
		s.HugePages = readHugePagesV1(dirs["hugetlb"], pageSizes())
	} else {
		if _, err := os.Stat(dirs[""]); err != nil {
			return s, err
		}
		s.readV2(dirs[""])
	}
	// Pressure is counted in every directory of v2, on a hybrid host too, where
	// the v2 hierarchy may also be the one that has the hugetlb controller.
	if dir := dirs[""]; dir != "" {
		s.CPU.PSI = readPSI(filepath.Join(dir, "cpu.pressure"))
		s.Memory.PSI = readPSI(filepath.Join(dir, "memory.pressure"))
		s.IO.PSI = readPSI(filepath.Join(dir, "io.pressure"))
		if s.HugePages == nil {
			s.HugePages = readHugePagesV2(dir, pageSizes())
		}
	}
	s.Memory.WorkingSet = less(s.Memory.Usage, s.Memory.WorkingSet) // it held the inactive file pages
	if s.Memory.Limit > 0 {
		s.Memory.Available = less(s.Memory.Limit, s.Memory.WorkingSet)
	}
	if s.Swap.Limit > 0 {
		s.Swap.Available = less(s.Swap.Limit, s.Swap.Usage)
	}
	return s, nil
}

func (s *Stats) readV2(dir string) {
	cpu := readPairs(filepath.Join(dir, "cpu.stat"))
	s.CPU = CPUStats{
		UsageNs: cpu["usage_usec"] * 1000, UserNs: cpu["user_usec"] * 1000, SystemNs: cpu["system_usec"] * 1000,
		Periods: cpu["nr_periods"], ThrottledPeriods: cpu["nr_throttled"], ThrottledNs: cpu["throttled_usec"] * 1000,
	}
	mem := readPairs(filepath.Join(dir, "memory.stat"))
	s.Memory = MemoryStats{
		Usage:      readNumber(filepath.Join(dir, "memory.current")),
		WorkingSet: mem["inactive_file"],
		RSS:        mem["anon"], Cache: mem["file"], MappedFile: mem["file_mapped"], Kernel: mem["kernel"],
		Limit:       readNumber(filepath.Join(dir, "memory.max")),
		Peak:        readNumber(filepath.Join(dir, "memory.peak")),
		Reservation: readNumber(filepath.Join(dir, "memory.low")),
		FailCount:   readPairs(filepath.Join(dir, "memory.events"))["max"],
		PageFaults:  mem["pgfault"], MajorPageFaults: mem["pgmajfault"],
	}
	s.Swap = SwapStats{
		Usage: readNumber(filepath.Join(dir, "memory.swap.current")),
		Limit: readNumber(filepath.Join(dir, "memory.swap.max")),
	}
	s.IO.Devices = readIOStat(filepath.Join(dir, "io.stat"))
	s.readPids(dir)
}

// nsPerTick: the kernel tells times in USER_HZ, 100 on every architecture
// that Go runs on (time(7)).
const nsPerTick = 1e9 / 100

func (s *Stats) readV1(dirs map[string]string) {
	ticks := readPairs(filepath.Join(dirs["cpuacct"], "cpuacct.stat"))
	quota := readPairs(filepath.Join(dirs["cpu"], "cpu.stat"))
	s.CPU = CPUStats{
		UsageNs: readNumber(filepath.Join(dirs["cpuacct"], "cpuacct.usage")),
		UserNs:  ticks["user"] * nsPerTick, SystemNs: ticks["system"] * nsPerTick,
		Periods: quota["nr_periods"], ThrottledPeriods: quota["nr_throttled"], ThrottledNs: quota["throttled_time"],
	}
	dir := dirs["memory"]
	mem := readPairs(filepath.Join(dir, "memory.stat"))
	s.Memory = MemoryStats{
		Usage:      readNumber(filepath.Join(dir, "memory.usage_in_bytes")),
		WorkingSet: mem["total_inactive_file"],
		RSS:        mem["total_rss"], Cache: mem["total_cache"], MappedFile: mem["total_mapped_file"],
		Kernel:      readNumber(filepath.Join(dir, "memory.kmem.usage_in_bytes")),
		Limit:       bounded(readNumber(filepath.Join(dir, "memory.limit_in_bytes"))),
		Peak:        readNumber(filepath.Join(dir, "memory.max_usage_in_bytes")),
		Reservation: bounded(readNumber(filepath.Join(dir, "memory.soft_limit_in_bytes"))),
		FailCount:   readNumber(filepath.Join(dir, "memory.failcnt")),
		PageFaults:  mem["total_pgfault"], MajorPageFaults: mem["total_pgmajfault"],
	}
	// memsw counts memory and swap together.
	s.Swap.Usage = mem["total_swap"]
	if both := bounded(readNumber(filepath.Join(dir, "memory.memsw.limit_in_bytes"))); both > 0 {
		s.Swap.Limit = less(both, s.Memory.Limit)
	}
	s.IO.Devices = readBlkioV1(dirs["blkio"])
	s.readPids(dirs["pids"])
}

// readPids reads the files that have the same names in both versions.
func (s *Stats) readPids(dir string) {
	s.Pids = PidStats{
		Current: readNumber(filepath.Join(dir, "pids.current")),
		Limit:   readNumber(filepath.Join(dir, "pids.max")),
	}
}

// pageSizes are the sizes of huge pages that the kernel has, as they stand in the
// names of cgroup files. They are fixed when it boots.
var pageSizes = sync.OnceValue(cgroups.HugePageSizes)

func readHugePagesV1(dir string, sizes []string) []HugePageStats {
	return readHugePages(dir, sizes, ".usage_in_bytes", ".max_usage_in_bytes")
}

func readHugePagesV2(dir string, sizes []string) []HugePageStats {
	return readHugePages(dir, sizes, ".current", ".current")
}

// readHugePages returns nil if the controller is not there.
func readHugePages(dir string, sizes []string, usage, highest string) []HugePageStats {
	if dir == "" {
		return nil
	}
	var list []HugePageStats
	for _, size := range sizes {
		file := filepath.Join(dir, "hugetlb."+size)
		if _, err := os.Stat(file + usage); err != nil {
			return nil
		}
		list = append(list, HugePageStats{Size: size, Usage: readNumber(file + usage), Max: readNumber(file + highest)})
	}
	return list
}

// bounded makes v1's way to say "no limit", the largest page-aligned number, 0.
func bounded(limit uint64) uint64 {
	if limit > 1<<62 {
		return 0
	}
	return limit
}

// less is a-b, but not below 0: counters are not read at one instant.
func less(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}
