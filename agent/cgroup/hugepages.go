package cgroup

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/fs2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// unbounded is the kubelet's limit of huge pages for the cgroups above those of pods, in bytes.
const unbounded = 1 << 62

// Pages maps sizes of huge pages to bytes. A size is written as in the names of the hugetlb
// controller's files: "2MB".
type Pages map[string]uint64

// PageSize returns the kernel's name for a size of huge pages in bytes.
func PageSize(bytes int64) string {
	units := []string{"B", "KB", "MB", "GB"}
	for bytes >= 1024 && len(units) > 1 {
		bytes, units = bytes/1024, units[1:]
	}
	return fmt.Sprintf("%d%s", bytes, units[0])
}

// HugePages returns the huge pages in a list of resources, such as "hugepages-2Mi".
func HugePages(of v1.ResourceList) Pages {
	pages := Pages{}
	for name, q := range of {
		text, is := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix)
		if size, err := resource.ParseQuantity(text); is && err == nil {
			pages[PageSize(size.Value())] += uint64(q.Value())
		}
	}
	return pages
}

// LimitHugePages limits the huge pages of a pod, whose cgroup must exist. The pod gets none
// of a size that is not in pages. Without a hugetlb controller nothing is limited, as in
// the kubelet, and that is no error.
func (t *Tree) LimitHugePages(uid string, class v1.PodQOSClass, pages Pages) error {
	return t.setPages(t.pod(uid, class), pages)
}

func (t *Tree) setPages(names []string, pages Pages) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	path := strings.Join(names, "/")
	m, err := t.manager(names, Limits{})
	if err != nil {
		return fmt.Errorf("cgroup %s: %w", path, err)
	}
	last, set := t.pages[path]
	if set && maps.Equal(last, pages) && m.Exists() {
		return nil
	}
	if err := writePages(m.Path("hugetlb"), cgroups.IsCgroup2UnifiedMode(), cgroups.HugePageSizes(), pages); err != nil {
		return fmt.Errorf("limit huge pages of cgroup %s: %w", path, err)
	}
	t.pages[path] = maps.Clone(pages)
	return nil
}

// writePages writes the limit of each size. dir is the cgroup's directory in the hierarchy
// of the hugetlb controller, "" if none is mounted on cgroup v1. The files are written
// directly because systemd has no such limits.
func writePages(dir string, unified bool, sizes []string, pages Pages) error {
	r := &cgroups.Resources{SkipDevices: true, SkipFreezeOnSet: true}
	for _, size := range sizes {
		r.HugetlbLimit = append(r.HugetlbLimit, &cgroups.HugepageLimit{Pagesize: size, Limit: pages[size]})
	}
	if !unified {
		if dir == "" {
			return nil
		}
		return (&fs.HugetlbGroup{}).Set(dir, r)
	}
	controllers, err := cgroups.ReadFile(dir, "cgroup.controllers")
	if err != nil || !slices.Contains(strings.Fields(controllers), "hugetlb") {
		return err
	}
	m, err := fs2.NewManager(&cgroups.Cgroup{Resources: r}, dir)
	if err != nil {
		return err
	}
	return m.Set(r)
}
