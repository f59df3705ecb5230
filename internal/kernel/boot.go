package kernel

import (
	"fmt"
	"os"
	"strings"
)

// BootID returns the kernel's random ID of this boot (random(4)).
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
