package server

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/oci"
)

// series returns the values of a metric by its labels beyond the base ones, as "a,b".
func series(t *testing.T, metrics []*cri.Metric, name string) map[string]uint64 {
	t.Helper()
	got := map[string]uint64{}
	for _, m := range metrics {
		if m.Name != name {
			continue
		}
		labels := strings.Join(m.LabelValues[len(baseLabels):], ",")
		if _, twice := got[labels]; twice {
			t.Errorf("%s has the labels %s twice", name, labels)
		}
		got[labels] = m.Value.GetValue()
	}
	return got
}

// Dashboards show storage by disk, and leave out devices that are not disks.
func TestMetricsByDisk(t *testing.T) {
	dir := t.TempDir()
	for device, uevent := range map[string]string{
		"8:0": "MAJOR=8\nMINOR=0\nDEVNAME=sda\nDEVTYPE=disk\n", "253:1": "DEVNAME=dm-1\n", "104:0": "DEVNAME=cciss/c0d0\n", "259:0": "MAJOR=259\n",
	} {
		if err := os.Mkdir(filepath.Join(dir, device), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, device, "uevent"), []byte(uevent), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := measure(containerMetrics, &sample{disks: disks(dir, []oci.DeviceIO{
		{Device: "8:0", ReadBytes: 1, WriteBytes: 2, Reads: 3, Writes: 4},
		{Device: "253:1", ReadBytes: 5, WriteBytes: 6, Reads: 7, Writes: 8},
		{Device: "104:0", ReadBytes: 9}, {Device: "259:0", ReadBytes: 10}, {Device: "7:7", ReadBytes: 11},
	})}, make([]string, len(baseLabels)))
	for name, want := range map[string]map[string]uint64{
		"container_fs_reads_bytes_total":  {"/dev/sda": 1, "/dev/dm-1": 5, "/dev/cciss/c0d0": 9, "259:0": 10, "7:7": 11},
		"container_fs_writes_bytes_total": {"/dev/sda": 2, "/dev/dm-1": 6, "/dev/cciss/c0d0": 0, "259:0": 0, "7:7": 0},
		"container_fs_reads_total":        {"/dev/sda": 3, "/dev/dm-1": 7, "/dev/cciss/c0d0": 0, "259:0": 0, "7:7": 0},
		"container_fs_writes_total":       {"/dev/sda": 4, "/dev/dm-1": 8, "/dev/cciss/c0d0": 0, "259:0": 0, "7:7": 0},
		"container_blkio_device_usage_total": {
			"/dev/sda,8,0,Read": 1, "/dev/sda,8,0,Write": 2, "/dev/dm-1,253,1,Read": 5, "/dev/dm-1,253,1,Write": 6,
			"/dev/cciss/c0d0,104,0,Read": 9, "/dev/cciss/c0d0,104,0,Write": 0,
			"259:0,259,0,Read": 10, "259:0,259,0,Write": 0, "7:7,7,7,Read": 11, "7:7,7,7,Write": 0,
		},
	} {
		if diff := cmp.Diff(want, series(t, got, name)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// The disks of this machine have their names.
func TestMetricsOfDisksHere(t *testing.T) {
	entries, err := os.ReadDir(sysBlock)
	if err != nil {
		t.Fatal(err)
	}
	var used []oci.DeviceIO
	for _, e := range entries {
		used = append(used, oci.DeviceIO{Device: e.Name()})
	}
	if len(used) == 0 {
		t.Skip("this machine has no block device")
	}
	for _, d := range disks(sysBlock, used) {
		if _, err := os.Stat(filepath.Join(sysBlock, d.Device)); err == nil && !strings.HasPrefix(d.name, "/dev/") {
			t.Errorf("device %s is called %q", d.Device, d.name)
		}
	}
}

// The series that the panels of kubernetes-mixin select have values: disks by their names, page
// faults by scope.
func TestMetricsThatDashboardsSelect(t *testing.T) {
	n := newNode(t)
	n.countIn(t, "v2")
	n.begin(t, n.run(t, pod("a")), forever("x"))
	list, err := n.ListPodSandboxMetrics(t.Context(), &cri.ListPodSandboxMetricsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	all := list.PodMetrics[0].ContainerMetrics[0].Metrics
	want := map[string]uint64{"pgfault,container": 7, "pgmajfault,container": 1, "pgfault,hierarchy": 7, "pgmajfault,hierarchy": 1}
	if diff := cmp.Diff(want, series(t, all, "container_memory_failures_total")); diff != "" {
		t.Error(diff)
	}
	// Device 8:0 is sda wherever there is one (Documentation/admin-guide/devices.txt).
	selected := regexp.MustCompile(`^(/dev/)?(mmcblk.p.+|nvme.+|rbd.+|sd.+|vd.+|xvd.+|dm-.+|dasd.+)$`)
	if _, err := os.Stat(filepath.Join(sysBlock, "8:0")); err != nil {
		selected = regexp.MustCompile(`^8:0$`)
	}
	reads := series(t, all, "container_fs_reads_total")
	if len(reads) != 1 {
		t.Errorf("reads are %v, want those from one device", reads)
	}
	for device, n := range reads {
		if !selected.MatchString(device) || n != 3 {
			t.Errorf("%d reads from device %q", n, device)
		}
	}
}

// A container that has not used a disk yet has counters of 0.
func TestMetricsWithoutDisk(t *testing.T) {
	got := measure(containerMetrics, &sample{disks: disks(sysBlock, nil)}, make([]string, len(baseLabels)))
	if diff := cmp.Diff(map[string]uint64{"": 0}, series(t, got, "container_fs_reads_total")); diff != "" {
		t.Error(diff)
	}
}
