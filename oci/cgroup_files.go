package oci

import (
	"fmt"
	"os"
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

// readIOStat sums up io.stat of v2: "8:0 rbytes=1 wbytes=2 rios=3 wios=4 …".
func readIOStat(path string) IOStats {
	var s IOStats
	data, err := os.ReadFile(path)
	if err != nil {
		return s
	}
	for _, field := range strings.Fields(string(data)) {
		name, value, _ := strings.Cut(field, "=")
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "rbytes":
			s.ReadBytes += n
		case "wbytes":
			s.WriteBytes += n
		case "rios":
			s.Reads += n
		case "wios":
			s.Writes += n
		}
	}
	return s
}

// readBlkio sums up a blkio file of v1 by operation: "8:0 Read 1".
func readBlkio(path string) map[string]uint64 {
	sums := make(map[string]uint64)
	data, err := os.ReadFile(path)
	if err != nil {
		return sums
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue // the last line is a total
		}
		if n, err := strconv.ParseUint(fields[2], 10, 64); err == nil {
			sums[fields[1]] += n
		}
	}
	return sums
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
