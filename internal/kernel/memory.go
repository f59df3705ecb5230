package kernel

import (
	"fmt"
	"strings"
)

// TotalMemory is MemTotal of proc_meminfo(5) in bytes, 0 if the kernel does not tell.
func TotalMemory() int64 {
	for line := range strings.Lines(read("/proc/meminfo")) {
		var kib int64
		if n, err := fmt.Sscanf(line, "MemTotal: %d kB", &kib); n == 1 && err == nil {
			return kib << 10
		}
	}
	return 0
}
