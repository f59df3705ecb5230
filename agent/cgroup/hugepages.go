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

// unbounded is how many bytes of huge pages the cgroups above those of pods may
// have, as the kubelet has it.
const unbounded = 1 << 62

// Pages are bytes of huge pages, by the size of a page as the kernel writes it in
// the names of the hugetlb controller's files: "2MB".
type Pages map[string]uint64

// PageSize is how the kernel writes a size of huge pages, given in bytes.
func PageSize(bytes int64) string {
	units := []string{"B", "KB", "MB", "GB"}
	for bytes >= 1024 && len(units) > 1 {
		bytes, units = bytes/1024, units[1:]
	}
	return fmt.Sprintf("%d%s", bytes, units[0])
}

// HugePages are those of a list of resources.
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

// LimitHugePages limits the huge pages of a pod, whose cgroup is there already. Of a
// size that the kernel has and pages does not it gets none. Where there is no
// hugetlb controller nothing is limited, as with the kubelet, and that is no error.
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

// writePages writes the limit of each size. dir is that of the cgroup in the
// hierarchy of the hugetlb controller, "" if v1 has none. Neither driver's systemd
// knows such limits: both versions of the controller have them by their files alone.
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
