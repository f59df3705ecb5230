package kernel

import (
	"fmt"
	"strings"
)

// TotalMemory returns MemTotal of proc_meminfo(5) in bytes, 0 if it cannot be read.
func TotalMemory() int64 {
	for line := range strings.Lines(read("/proc/meminfo")) {
		var kib int64
		if n, err := fmt.Sscanf(line, "MemTotal: %d kB", &kib); n == 1 && err == nil {
			return kib << 10
		}
	}
	return 0
}
