package oci

import "time"

// Stats is what the kernel counted for a cgroup, read in one go.
type Stats struct {
	At     time.Time
	CPU    CPUStats
	Memory MemoryStats
	Swap   SwapStats
	IO     IOStats
	Pids   PidStats
}

// CPUStats counts nanoseconds.
type CPUStats struct {
	UsageNs, UserNs, SystemNs uint64
	Periods, ThrottledPeriods uint64
	ThrottledNs               uint64
	PSI                       *PSI // nil where the kernel has none (cgroup v1)
}

// MemoryStats counts bytes and faults.
type MemoryStats struct {
	Usage                       uint64 // all that is charged
	WorkingSet                  uint64 // Usage less inactive file pages
	RSS                         uint64 // anonymous pages
	Cache                       uint64 // file pages
	MappedFile                  uint64
	Available                   uint64 // Limit less WorkingSet; 0 if there is no limit
	Limit                       uint64 // 0 = none
	Peak                        uint64 // 0 if the kernel does not tell
	FailCount                   uint64
	PageFaults, MajorPageFaults uint64
	Kernel                      uint64
	PSI                         *PSI
}

// SwapStats counts bytes.
type SwapStats struct{ Usage, Available, Limit uint64 }

// IOStats counts what reached block devices, over all of them.
type IOStats struct {
	ReadBytes, WriteBytes, Reads, Writes uint64
	PSI                                  *PSI
}

// PidStats counts tasks.
type PidStats struct {
	Current uint64
	Limit   uint64 // 0 = none
}

// PSI is pressure stall information: Total in microseconds, averages in percent.
type PSI struct{ Some, Full PSIData }

// PSIData is one line of a pressure file.
type PSIData struct {
	Total                uint64
	Avg10, Avg60, Avg300 float64
}
