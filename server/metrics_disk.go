package server

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/crisp-cri/crisp/oci"
)

// A disk is a block device that a container has used.
type disk struct {
	oci.DeviceIO
	name string // "/dev/sda", as in cAdvisor
}

// sysBlock has a directory for each block device, named by its number.
const sysBlock = "/sys/dev/block"

// disks names devices by the uevent files in a directory such as sysBlock. A device that has
// been removed goes by its number. Without devices it returns a single entry without name and
// counts, because a counter should exist from the start.
func disks(dir string, devices []oci.DeviceIO) []disk {
	if len(devices) == 0 {
		return []disk{{}}
	}
	list := make([]disk, len(devices))
	for i, d := range devices {
		list[i] = disk{d, d.Device}
		uevent, _ := os.ReadFile(filepath.Join(dir, d.Device, "uevent")) // missing file: no lines
		for line := range strings.Lines(string(uevent)) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); ok {
				list[i].name = "/dev/" + name
			}
		}
	}
	return list
}

// perDisk returns the values function of a block device metric.
func perDisk(value func(disk) uint64) func(*sample) []point {
	return func(s *sample) []point {
		var list []point
		for _, d := range s.disks {
			list = append(list, point{[]string{d.name}, value(d)})
		}
		return list
	}
}

func diskUsage(s *sample) []point {
	var list []point
	for _, d := range s.disks {
		major, minor, _ := strings.Cut(d.Device, ":")
		list = append(list,
			point{[]string{d.name, major, minor, "Read"}, d.ReadBytes},
			point{[]string{d.name, major, minor, "Write"}, d.WriteBytes})
	}
	return list
}
