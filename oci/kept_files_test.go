package oci

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/crisp-cri/crisp/test/testenv"
)

// counterFiles are some files of a v2 cgroup, by name.
var counterFiles = map[string]string{
	"cpu.stat": "usage_usec 10\n", "memory.current": "1000\n", "memory.max": "2000\n", "pids.current": "5\n",
	"memory.stat":  "anon 300\ninactive_file 400\n",
	"cpu.pressure": "some avg10=1.50 avg60=0.25 avg300=0.01 total=77\nfull avg10=0.00 avg60=12.34 avg300=0.00 total=5\n",
}

// openBelow counts the files that this process has open below dir.
func openBelow(t *testing.T, dir string) (n int) {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, dir+"/") {
			n++
		}
	}
	return n
}

func (k *keptFiles) mustRead(t *testing.T, dir string) Stats {
	t.Helper()
	s, err := k.read(map[string]string{"": dir})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Readers get the same counters, and all of them, however many files may be kept open; none
// is open in the end.
func TestKeptFiles(t *testing.T) {
	dir := write(t, counterFiles)
	want, _, err := readStats(map[string]string{"": dir}, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	if psi := want.CPU.PSI; psi.Some != (PSIData{77, 1.5, 0.25, 0.01}) || psi.Full != (PSIData{5, 0, 12.34, 0}) {
		t.Errorf("pressure is %+v", psi)
	}
	for max, open := range map[int64]int{0: 0, 2: 2, 1000: len(counterFiles)} {
		k := &keptFiles{budget: &keptBudget{max: max}}
		for range 3 {
			if diff := cmp.Diff(want, k.mustRead(t, dir), cmpopts.IgnoreFields(Stats{}, "At")); diff != "" {
				t.Errorf("%d files may be kept: %s", max, diff)
			}
			if got := openBelow(t, dir); got != open {
				t.Errorf("%d files may be kept: %d are open, want %d", max, got, open)
			}
		}
		k.close()
		k.mustRead(t, dir) // a late reader
		if got, used := openBelow(t, dir), k.budget.used.Load(); got != 0 || used != 0 {
			t.Errorf("%d files are open after the end, %d are accounted for", got, used)
		}
	}
}

// A kept file is read again each time.
func TestKeptFilesFollow(t *testing.T) {
	dir := write(t, counterFiles)
	k := &keptFiles{budget: &keptBudget{max: 1000}}
	defer k.close()
	k.mustRead(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "memory.current"), []byte("12345678\n"), 0); err != nil {
		t.Fatal(err)
	}
	// io.stat of a controller that was enabled later, longer than the buffer.
	var devices strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&devices, "8:%d rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n", i)
	}
	if err := os.WriteFile(filepath.Join(dir, "io.stat"), []byte(devices.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := k.mustRead(t, dir); s.Memory.Usage != 12345678 {
		t.Errorf("usage is %d", s.Memory.Usage)
	}
	if s, _, err := readStats(map[string]string{"": dir}, nil, true); err != nil || len(s.IO.Devices) != 1000 || s.IO.Devices[999] != (DeviceIO{"8:999", 1, 2, 3, 4}) {
		t.Errorf("%d devices (err %v)", len(s.IO.Devices), err)
	}
}

// Files that were not read for a while are closed, and opened again for the next reader.
func TestKeptFilesRest(t *testing.T) {
	dir := write(t, counterFiles)
	k := &keptFiles{budget: &keptBudget{max: 1000}}
	defer k.close()
	before := time.Now()
	k.mustRead(t, dir)
	k.rest(before)
	if got := openBelow(t, dir); got == 0 {
		t.Error("closed although they were read since")
	}
	k.rest(time.Now())
	if got := openBelow(t, dir); got != 0 {
		t.Errorf("%d files are open", got)
	}
	if s := k.mustRead(t, dir); s.Memory.Usage != 1000 || openBelow(t, dir) == 0 {
		t.Errorf("the next reader found %d, with %d files open", s.Memory.Usage, openBelow(t, dir))
	}
}

// The end of a container does not wait for readers, and the last reader leaves no file
// open.
func TestKeptFilesCloseUnderReaders(t *testing.T) {
	dir := write(t, counterFiles)
	budget := &keptBudget{max: 1000}
	for range 50 {
		k := &keptFiles{budget: budget}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 10 {
					if s, err := k.read(map[string]string{"": dir}); err != nil || s.Memory.Usage != 1000 {
						t.Errorf("read %d (err %v)", s.Memory.Usage, err)
					}
				}
			})
		}
		wg.Go(k.close)
		wg.Wait()
	}
	if got, used := openBelow(t, dir), budget.used.Load(); got != 0 || used != 0 {
		t.Errorf("%d files are open, %d are accounted for", got, used)
	}
}

// A cgroup that was removed has no counters, even if its files are open; one that was made
// again in its place has its own.
func TestKeptFilesOfRemovedCgroup(t *testing.T) {
	testenv.NeedRoot(t, "it makes cgroups")
	name := ownCgroup(NewID(), false)
	k := &kernel{}
	defer k.removeCgroupBase()
	dirs, err := cgroupDirs(name)
	if err != nil {
		t.Fatal(err)
	}
	kept := &keptFiles{budget: &keptBudget{max: 1000}}
	limit, limitDir := "memory.max", dirs[""]
	if dir, v1 := dirs["memory"]; v1 {
		limit, limitDir = "memory.limit_in_bytes", dir
	}
	for i := range uint64(3) {
		if err := k.Cgroup(name, true); err != nil {
			t.Fatal(err)
		}
		want := (i + 1) << 20
		if err := os.WriteFile(filepath.Join(limitDir, limit), fmt.Append(nil, want), 0); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if s, err := kept.read(dirs); err != nil || s.Memory.Limit != want {
				t.Errorf("limit is %d, want %d (err %v)", s.Memory.Limit, want, err)
			}
		}
		if openBelow(t, limitDir) == 0 {
			t.Error("nothing is kept")
		}
		if err := k.Cgroup(name, false); err != nil {
			t.Fatal(err)
		}
		if i == 1 { // the second reader comes before the change was noticed
			continue
		}
		if s, err := kept.read(dirs); !os.IsNotExist(err) {
			t.Errorf("a cgroup that is gone has %+v (err %v)", s, err)
		}
		if used := kept.budget.used.Load(); used != 0 {
			t.Errorf("%d files are kept of a cgroup that is gone", used)
		}
	}
	kept.close()
}

func TestParseNumber(t *testing.T) {
	for text, want := range map[string]struct {
		n  uint64
		ok bool
	}{
		"0": {0, true}, "18446744073709551615": {1<<64 - 1, true}, "9223372036854771712": {9223372036854771712, true},
		"18446744073709551616": {}, "99999999999999999999": {}, "": {}, "max": {}, "-1": {}, "1 ": {}, "0x1": {},
	} {
		if n, ok := parseNumber([]byte(text)); n != want.n || ok != want.ok {
			t.Errorf("%q: %d, %v", text, n, ok)
		}
	}
	for text, want := range map[string]float64{"0.00": 0, "99.99": 99.99, "100": 100, "x": 0, "1.x": 0, "1.": 1, "": 0} {
		if got := parseDecimal([]byte(text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// BenchmarkUsage reads the counters of a real cgroup, as for CRI's statistics, with its
// files kept open and without.
func BenchmarkUsage(b *testing.B) {
	testenv.NeedRoot(b, "it makes cgroups")
	name := ownCgroup(NewID(), false)
	k := &kernel{}
	if err := k.Cgroup(name, true); err != nil {
		b.Fatal(err)
	}
	defer k.removeCgroupBase()
	defer k.Cgroup(name, false)
	dirs, err := cgroupDirs(name)
	if err != nil {
		b.Fatal(err)
	}
	for _, max := range []int64{1000, 0} {
		b.Run(fmt.Sprint("kept=", max > 0), func(b *testing.B) {
			kept := &keptFiles{budget: &keptBudget{max: max}}
			defer kept.close()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := kept.read(dirs); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
