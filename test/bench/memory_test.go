package main

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const rollup = `55d0a1e00000-7ffd2c1fe000 ---p 00000000 00:00 0                          [rollup]
Rss:               41300 kB
Pss:               20480 kB
Pss_Dirty:         10000 kB
Shared_Clean:      24000 kB
Private_Clean:      1024 kB
Private_Dirty:      9216 kB
THPeligible:           0
`

func TestParseRollup(t *testing.T) {
	got, err := parseRollup([]byte(rollup))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(memory{pss: 20, private: 10, processes: 1}, got, cmp.AllowUnexported(memory{})); d != "" {
		t.Error(d)
	}
	if _, err := parseRollup(nil); err == nil {
		t.Error("an empty smaps_rollup parsed")
	}
}

func TestReadProcesses(t *testing.T) {
	procs, err := readProcesses("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		if p.pid == os.Getpid() {
			if p.parent != os.Getppid() || p.exe != "bench.test" || p.args[0] != os.Args[0] {
				t.Errorf("have %+v of this process, child of %d", p, os.Getppid())
			}
			return
		}
	}
	t.Error("this process is not in /proc")
}

func TestParseParent(t *testing.T) {
	for stat, want := range map[string]int{
		"42 (sh) S 7 42 42 0":            7,
		"42 (a) R 9 b) (c) S 1 42 42 0":  1,
		"42 (tmux: server) S 300 42 1 0": 300,
	} {
		if got, err := parseParent(stat); got != want || err != nil {
			t.Errorf("parseParent(%q) = %d, %v, want %d", stat, got, err, want)
		}
	}
	if _, err := parseParent("42 (sh)"); err == nil {
		t.Error("a stat without a parent parsed")
	}
}

func TestExeName(t *testing.T) {
	for link, want := range map[string]string{
		"":                                "",
		"/usr/bin/conmon":                 "conmon",
		"/usr/bin/crispd (deleted)":       "crispd",
		"/memfd:crisp-executor (deleted)": "crisp-executor",
	} {
		if got := exeName(link); got != want {
			t.Errorf("exeName(%q) = %q, want %q", link, got, want)
		}
	}
}

func TestRuntimeProcesses(t *testing.T) {
	procs := []process{
		{pid: 1, exe: "init"},
		{pid: 10, parent: 1, exe: "containerd"},
		{pid: 11, parent: 10, exe: "runc"},
		{pid: 20, parent: 1, exe: "containerd-shim"},
		{pid: 21, parent: 20, exe: "pause", args: []string{"/pause"}},
		{pid: 22, parent: 20, exe: "busybox", args: payload},
		{pid: 23, parent: 22, exe: "busybox", args: []string{"true"}},
		{pid: 24, parent: 20, exe: "busybox", args: []string{"/bin/busybox", "sleep", "36000"}},
		{pid: 30, parent: 1, exe: "sshd"},
		{pid: 31, parent: 2},
	}
	if d := cmp.Diff([]int{10, 11, 20, 21}, runtimeProcesses(procs, []int{10}, []program{{"containerd-shim", ""}})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]int{21}, runtimeProcesses(procs, nil, []program{{"pause", "/pause"}, {"containerd", "--other"}})); d != "" {
		t.Error(d)
	}
	if got := runtimeProcesses(procs, nil, nil); got != nil {
		t.Errorf("have %v of no runtime", got)
	}
}
