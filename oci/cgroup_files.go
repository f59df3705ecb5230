package oci

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The readers of cgroup files. A file that is missing, because its controller
// is off or the cgroup has just gone, or that cannot be understood counts
// nothing: one counter must not cost all the others.

// readNumber reads a file that holds one number, or "max" (0).
func readNumber(path string) uint64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// readPairs reads a file with a name and a number on each line.
func readPairs(path string) map[string]uint64 {
	pairs := make(map[string]uint64)
	data, err := os.ReadFile(path)
	if err != nil {
		return pairs
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			pairs[name] = n
		}
	}
	return pairs
}

// readIOStat reads io.stat of v2: "8:0 rbytes=1 wbytes=2 rios=3 wios=4 …". A device
// with no counters after its number has not been used.
func readIOStat(path string) []DeviceIO {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var list []DeviceIO
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		d := DeviceIO{Device: fields[0]}
		for _, field := range fields[1:] {
			name, value, _ := strings.Cut(field, "=")
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				continue
			}
			switch name {
			case "rbytes":
				d.ReadBytes = n
			case "wbytes":
				d.WriteBytes = n
			case "rios":
				d.Reads = n
			case "wios":
				d.Writes = n
			}
		}
		list = append(list, d)
	}
	return list
}

// readBlkioV1 reads blkio's two files of v1, with lines such as "8:0 Read 1"; the last
// line of each is a total.
func readBlkioV1(dir string) []DeviceIO {
	var list []DeviceIO
	of := func(device string) *DeviceIO {
		for i := range list {
			if list[i].Device == device {
				return &list[i]
			}
		}
		list = append(list, DeviceIO{Device: device})
		return &list[len(list)-1]
	}
	read := func(name string, reads, writes func(*DeviceIO) *uint64) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return
		}
		for line := range strings.Lines(string(data)) {
			fields := strings.Fields(line)
			if len(fields) != 3 {
				continue
			}
			n, err := strconv.ParseUint(fields[2], 10, 64)
			if err != nil {
				continue
			}
			switch fields[1] {
			case "Read":
				*reads(of(fields[0])) = n
			case "Write":
				*writes(of(fields[0])) = n
			}
		}
	}
	read("blkio.throttle.io_service_bytes_recursive",
		func(d *DeviceIO) *uint64 { return &d.ReadBytes }, func(d *DeviceIO) *uint64 { return &d.WriteBytes })
	read("blkio.throttle.io_serviced_recursive",
		func(d *DeviceIO) *uint64 { return &d.Reads }, func(d *DeviceIO) *uint64 { return &d.Writes })
	return list
}

// readPSI reads a pressure file, nil where the kernel has none.
func readPSI(path string) *PSI {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var psi PSI
	for line := range strings.Lines(string(data)) {
		var kind string
		var d PSIData
		_, err := fmt.Sscanf(line, "%s avg10=%f avg60=%f avg300=%f total=%d", &kind, &d.Avg10, &d.Avg60, &d.Avg300, &d.Total)
		switch {
		case err != nil:
		case kind == "some":
			psi.Some = d
		case kind == "full":
			psi.Full = d
		}
	}
	return &psi
}
