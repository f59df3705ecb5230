package kernel

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// The release of a distribution's kernel has more than a version.
func TestVersion(t *testing.T) {
	for release, want := range map[string][2]int{
		"6.18.44-fc-v445": {6, 18}, "5.15.0-1051-azure": {5, 15}, "6.1": {6, 1}, "7.0-rc3": {7, 0}, "nonsense": {0, 0},
	} {
		if major, minor := version(release); major != want[0] || minor != want[1] {
			t.Errorf("version(%q) = %d.%d, want %d.%d", release, major, minor, want[0], want[1])
		}
	}
	f := Features{Major: 5, Minor: 12}
	if !f.AtLeast(5, 12) || !f.AtLeast(4, 99) || f.AtLeast(5, 13) || f.AtLeast(6, 0) {
		t.Error("AtLeast is wrong: 5.12 is at least 5.12 and 4.99, and neither 5.13 nor 6.0")
	}
}

// A capability outside of the bounding set is lost on execve, so it cannot be given to containers.
func TestCapabilities(t *testing.T) {
	got := capabilities("Name:\tx\nCapInh:\t0000000000000000\nCapPrm:\t000001ffffffffff\nCapEff:\t000001ffffffffff\nCapBnd:\t000001fffeffffff\n")
	f := Features{Capabilities: got}
	if f.Can(unix.CAP_SYS_RESOURCE) || !f.Can(unix.CAP_SYS_ADMIN) || !f.Can(unix.CAP_CHECKPOINT_RESTORE) {
		t.Errorf("got %x", got)
	}
	if f.OOMScoreAdj = 100; f.MinOOMScoreAdj() != 100 {
		t.Errorf("lowest oom_score_adj is %d without CAP_SYS_RESOURCE, want our own", f.MinOOMScoreAdj())
	}
	f.Capabilities |= 1 << unix.CAP_SYS_RESOURCE
	if f.MinOOMScoreAdj() != -1000 {
		t.Errorf("lowest oom_score_adj is %d with CAP_SYS_RESOURCE, want -1000", f.MinOOMScoreAdj())
	}
}

// A controller counts if it is enabled and mounted.
func TestControllersV1(t *testing.T) {
	table := "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t2\t1\t1\nmemory\t3\t1\t0\npids\t4\t1\t1\nhugetlb\t0\t1\t1\n"
	got := enabledV1(table, func(name string) bool { return name != "hugetlb" })
	if want := []string{"cpu", "pids"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// On any host the probes find at least the basics.
func TestProbe(t *testing.T) {
	f := Probe()
	if f.Major < 4 || f.Release == "" {
		t.Errorf("kernel %q is read as %d.%d", f.Release, f.Major, f.Minor)
	}
	if f.RecursiveRO != f.AtLeast(5, 12) {
		t.Errorf("mount_setattr(2) on %s: %v", f.Release, f.RecursiveRO)
	}
	t.Logf("%+v", f)
}
