package limits

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Values that are restored in the cgroup's files are restored in the unit as well:
// otherwise the next daemon-reload would undo that.
func TestPropertiesOfLimits(t *testing.T) {
	files := Files{
		"/c/memory.max": "max\n", "/c/memory.high": "4096\n", "/c/memory.swap.max": "0\n", "/c/pids.max": "max\n",
		"/c/cpu.max": "25000 50000\n", "/c/cpu.weight": "100\n", "/c/cpuset.cpus": "0-1,9\n", "/c/cpuset.mems": "\n",
		"/c/hugetlb.2MB.max": "max\n", "/c/cpu.max.burst": "0\n", "/c/io.weight": "default 100\n",
	}
	var got []string
	for _, p := range files.properties() {
		got = append(got, p.Name+"="+fmt.Sprint(p.Value.Value()))
	}
	slices.Sort(got)
	want := []string{
		"AllowedCPUs=[3 2]", "AllowedMemoryNodes=[]", "CPUQuotaPerSecUSec=500000", "CPUQuotaPeriodUSec=50000", "CPUWeight=100",
		"MemoryHigh=4096", "MemoryMax=18446744073709551615", "MemorySwapMax=0", "TasksMax=18446744073709551615",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := (Files{"/c/cpu.max": "max 100000\n"}).properties(); len(got) != 2 || fmt.Sprint(got[1].Value.Value()) != "18446744073709551615" {
		t.Errorf("no quota is %v", got)
	}
}
