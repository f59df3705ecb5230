package main

import (
	"testing"
	"testing/fstest"
	"time"
)

func TestMachineCPU(t *testing.T) {
	const stat = "cpu  100 1 50 9999 9999 2 3 9999 9999 9999\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	for name, test := range map[string]struct {
		root fstest.MapFS
		want time.Duration
	}{
		"cgroup v1":            {fstest.MapFS{"sys/fs/cgroup/cpuacct/cpuacct.usage": file("1234\n"), "proc/stat": file(stat)}, 1234},
		"cgroup v1, comounted": {fstest.MapFS{"sys/fs/cgroup/cpu,cpuacct/cpuacct.usage": file("1234\n")}, 1234},
		"cgroup v2":            {fstest.MapFS{"proc/stat": file(stat)}, 1560 * time.Millisecond},
	} {
		if got, err := machineCPU(test.root); err != nil || got != test.want {
			t.Errorf("%s: %v, %v, want %v", name, got, err, test.want)
		}
	}
	for _, bad := range []string{"", "cpu 1 2\n", "cpu  a b c d e f g\n", "intr 1 2 3 4 5 6 7\n"} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestDiskstats(t *testing.T) {
	const stats = " 254  0 vda 1 2 3 4 5 6 700 8 0 9 10 0 0 0 0 11 12\n   7  0 loop0 0 0 0 0 0 0 8 0 0 0 0 0 0 0 0 0 0\n"
	if got, err := parseDiskstats(stats); err != nil || got != 708 {
		t.Errorf("have %d sectors, %v, want 708", got, err)
	}
	for _, bad := range []string{"254 0 vda 1 2 3 4 5 6\n", "254 0 vda 1 2 3 4 5 6 x\n"} {
		if _, err := parseDiskstats(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
