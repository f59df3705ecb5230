package kernel

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Prepared mounts, containers and bind mounts of cgroups add mounts of a hierarchy, or of parts of
// it: the first mount of the whole hierarchy counts.
func TestHierarchies(t *testing.T) {
	for name, tc := range map[string]struct {
		mounts string
		own    map[string]string
		want   []Hierarchy
	}{
		"v2": {
			mounts: "26 23 0:23 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
			own:    map[string]string{"": "/system.slice/x.service"},
			want:   []Hierarchy{{Dir: "/sys/fs/cgroup", Whole: true, Controllers: []string{""}, own: "/system.slice/x.service"}},
		},
		"hybrid": {
			mounts: `31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
50 31 0:29 /pod /mnt/part rw - cgroup cgroup rw,cpu,cpuacct
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
51 31 0:29 / /mnt/again rw - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset,clone_children
35 31 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
`,
			own: map[string]string{"cpu": "/a", "cpuacct": "/a", "name=systemd": "/b", "cpuset": "/", "": "/b"},
			want: []Hierarchy{
				{Dir: "/sys/fs/cgroup/cpu,cpuacct", Whole: true, Controllers: []string{"cpu", "cpuacct"}, own: "/a"},
				{Dir: "/sys/fs/cgroup/systemd", Whole: true, Controllers: []string{"name=systemd"}, own: "/b"},
				{Dir: "/sys/fs/cgroup/cpuset", Whole: true, Controllers: []string{"cpuset"}, own: "/"},
				{Dir: "/sys/fs/cgroup/unified", Whole: true, Controllers: []string{""}, own: "/b"},
			},
		},
		"in a container": {
			mounts: "40 39 0:29 /docker/c /sys/fs/cgroup/pids ro - cgroup cgroup rw,pids\n",
			own:    map[string]string{"pids": "/docker/c"},
			want:   []Hierarchy{{Dir: "/sys/fs/cgroup/pids", Controllers: []string{"pids"}, own: "/"}},
		},
		"what was delegated, over the host's": {
			mounts: `26 23 0:23 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
90 26 0:23 /user.slice/x.scope /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
`,
			own:  map[string]string{"": "/user.slice/x.scope/crisp-executor"},
			want: []Hierarchy{{Dir: "/sys/fs/cgroup", Controllers: []string{""}, own: "/crisp-executor"}},
		},
		"from outside of it": {
			mounts: "26 23 0:23 /user.slice/x.scope /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
			own:    map[string]string{"": "/user.slice/x.scope-2"},
			want:   []Hierarchy{{Dir: "/sys/fs/cgroup", Controllers: []string{""}, own: "/user.slice/x.scope-2"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := hierarchies(strings.NewReader(tc.mounts), tc.own)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, got, cmp.AllowUnexported(Hierarchy{})); d != "" {
				t.Error(d)
			}
		})
	}
}

// Each of the host's hierarchies has our own cgroup.
func TestOwnCgroup(t *testing.T) {
	all, err := Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range all {
		if _, err := os.Stat(h.Own()); h.Whole && err != nil {
			t.Errorf("own cgroup in the hierarchy of %v: %v", h.Controllers, err)
		}
	}
}
