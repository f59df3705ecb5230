package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/fs2"
	"github.com/opencontainers/cgroups/manager"
	v1 "k8s.io/api/core/v1"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/internal/kernel"
)

// CgroupLimits are the limits of a cgroup.
type CgroupLimits struct {
	Shares uint64 // CPU weight relative to sibling cgroups, as cpu.shares of cgroup v1
	Quota  int64  // µs of CPU time per Period; 0 is no limit
	Period uint64 // µs
	Memory int64  // bytes; 0 is no limit
	Pids   int64  // 0 is no limit
	// Pages are the huge pages, none of a size that is not there; nil leaves them as they are.
	// Without a hugetlb controller they are not limited, as in the kubelet, and that is no error.
	Pages podspec.Pages
}

// unbounded is the kubelet's limit of huge pages for the cgroups above those of pods, in bytes.
const unbounded = 1 << 62

// classes are the QoS classes, in the order in which Open makes their cgroups.
var classes = []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort}

// A CgroupTree has the cgroups of pods below a root, in the kubelet's layout and with its limits:
//
//	cgroupfs                         systemd
//	kubepods                         kubepods.slice
//	├─ pod<uid>                      ├─ kubepods-pod<uid>.slice                 guaranteed
//	├─ burstable                     ├─ kubepods-burstable.slice
//	│  └─ pod<uid>                   │  └─ kubepods-burstable-pod<uid>.slice
//	└─ besteffort                    └─ kubepods-besteffort.slice
//	   └─ pod<uid>                      └─ kubepods-besteffort-pod<uid>.slice
//
// The runtime makes the cgroups of containers below the cgroup of their pod. All cgroups
// outlive the agent, which finds that of a pod again by its UID and QoS class. It is safe for
// concurrent use.
type CgroupTree struct {
	root    []string // names of the cgroups above kubepods
	systemd bool

	mu    sync.Mutex
	known map[string]CgroupLimits // as last set, by cgroup; guarded by mu
}

// OpenCgroups makes the cgroups of the QoS classes below root; "/" is the root of the hierarchy. All
// pods together get these limits and unlimited huge pages. With systemd cgroups are slices.
func OpenCgroups(root string, systemd bool, limits CgroupLimits) (*CgroupTree, error) {
	t := &CgroupTree{systemd: systemd, known: map[string]CgroupLimits{}}
	for name := range strings.SplitSeq(strings.Trim(root, "/"), "/") {
		if name != "" {
			t.root = append(t.root, name)
		}
	}
	limits.Pages = podspec.Pages{}
	for _, size := range cgroups.HugePageSizes() {
		limits.Pages[size] = unbounded
	}
	for _, class := range classes {
		if err := t.set(t.class(class), limits); err != nil {
			return nil, err
		}
		limits = CgroupLimits{Shares: podspec.MinShares, Pages: limits.Pages} // for the classes below kubepods
	}
	return t, nil
}

// class returns the names on the path to the cgroup of a class.
func (t *CgroupTree) class(class v1.PodQOSClass) []string {
	names := append(slices.Clone(t.root), "kubepods")
	if class != v1.PodQOSGuaranteed {
		names = append(names, strings.ToLower(string(class)))
	}
	return names
}

func (t *CgroupTree) pod(uid string, class v1.PodQOSClass) []string {
	return append(t.class(class), "pod"+uid)
}

// Parent returns the cgroup parent of a pod's containers for CRI. Like the kubelet it returns
// a slice's whole path, although the name contains those of the slices above it.
func (t *CgroupTree) Parent(uid string, class v1.PodQOSClass) string {
	return t.path(t.pod(uid, class))
}

// path returns the path of a cgroup below the root of a hierarchy.
func (t *CgroupTree) path(names []string) string {
	path := "/"
	for i, name := range names {
		if t.systemd {
			name = slice(names[:i+1])
		}
		path = filepath.Join(path, name)
	}
	return path
}

// slice returns systemd's name of a cgroup, which contains the names of all cgroups above it.
func slice(names []string) string {
	escaped := make([]string, len(names))
	for i, name := range names {
		escaped[i] = escape(name)
	}
	return strings.Join(escaped, "-") + ".slice"
}

// escape replaces "-", which separates the parts of a slice's name.
func escape(name string) string { return strings.ReplaceAll(name, "-", "_") }

func (t *CgroupTree) manager(names []string, l CgroupLimits) (cgroups.Manager, error) {
	r := &cgroups.Resources{SkipDevices: true, SkipFreezeOnSet: true, Memory: l.Memory, CpuQuota: l.Quota, CpuPeriod: l.Period}
	if l.Pids > 0 {
		r.PidsLimit = &l.Pids
	}
	if cgroups.IsCgroup2UnifiedMode() {
		r.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(l.Shares)
	} else {
		r.CpuShares = l.Shares
	}
	c := &cgroups.Cgroup{Resources: r, Systemd: t.systemd}
	if !t.systemd {
		c.Path = t.path(names)
		return manager.New(c)
	}
	c.Name, c.Parent = slice(names), "-.slice"
	if len(names) > 1 {
		c.Parent = slice(names[:len(names)-1])
	}
	return manager.New(c)
}

// set makes the cgroup if it does not exist, and sets its limits unless they are set already.
func (t *CgroupTree) set(names []string, l CgroupLimits) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	path := strings.Join(names, "/")
	m, err := t.manager(names, l)
	if err != nil {
		return fmt.Errorf("cgroup %s: %w", path, err)
	}
	last, set := t.known[path]
	if set && reflect.DeepEqual(last, l) && m.Exists() {
		return nil
	}
	if err := m.Apply(-1); err != nil {
		return fmt.Errorf("make cgroup %s: %w", path, err)
	}
	c, _ := m.GetCgroups() // never fails: it returns what New was given
	r := c.Resources
	if last.Quota != 0 && l.Quota == 0 {
		r.CpuQuota = -1
	}
	if last.Memory != 0 && l.Memory == 0 {
		r.Memory = -1
	}
	if err := m.Set(r); err != nil {
		return fmt.Errorf("limit cgroup %s: %w", path, err)
	}
	if l.Pages != nil {
		if err := writePages(m.Path("hugetlb"), cgroups.IsCgroup2UnifiedMode(), cgroups.HugePageSizes(), l.Pages); err != nil {
			return fmt.Errorf("limit huge pages of cgroup %s: %w", path, err)
		}
	}
	t.known[path] = l
	return nil
}

// Make makes a pod's cgroup or changes its limits. It is idempotent.
func (t *CgroupTree) Make(uid string, class v1.PodQOSClass, l CgroupLimits) error {
	return t.set(t.pod(uid, class), l)
}

// SetBurstableShares sets the CPU shares of all burstable pods together, in milli-CPUs.
func (t *CgroupTree) SetBurstableShares(milli int64) error {
	return t.set(t.class(v1.PodQOSBurstable), CgroupLimits{Shares: podspec.CPUShares(milli)})
}

// Memory returns the working set of all pods together and how much they can have, in bytes.
func (t *CgroupTree) Memory() (workingSet, limit uint64, err error) {
	m, err := t.manager(t.class(v1.PodQOSGuaranteed), CgroupLimits{})
	if err != nil {
		return 0, 0, err
	}
	s, err := m.Stats(&cgroups.StatsOptions{Controllers: cgroups.Memory})
	if err != nil {
		return 0, 0, err
	}
	used := s.MemoryStats.Usage
	inactive := max(s.MemoryStats.Stats["total_inactive_file"], s.MemoryStats.Stats["inactive_file"]) // on v1 and v2
	return used.Usage - min(inactive, used.Usage), used.Limit, nil
}

// Remove removes the cgroup of a pod that no longer runs. A missing one is no error.
func (t *CgroupTree) Remove(uid string) error {
	var problems []error
	for _, class := range classes {
		names := t.pod(uid, class)
		m, err := t.manager(names, CgroupLimits{})
		if err != nil {
			return err
		}
		if m.Exists() || t.exists(names) {
			if err := m.Destroy(); err != nil {
				problems = append(problems, fmt.Errorf("remove cgroup %s: %w", strings.Join(names, "/"), err))
			}
		}
		t.mu.Lock()
		delete(t.known, strings.Join(names, "/"))
		t.mu.Unlock()
	}
	return errors.Join(problems...)
}

func (t *CgroupTree) exists(names []string) bool {
	return slices.ContainsFunc(t.dirs(names), func(dir string) bool { _, err := os.Stat(dir); return err == nil })
}

// dirs returns the directories of a cgroup, one in each hierarchy.
func (t *CgroupTree) dirs(names []string) []string {
	all, _ := kernel.Hierarchies()
	var dirs []string
	for _, h := range all {
		dirs = append(dirs, filepath.Join(h.Dir, t.path(names)))
	}
	return dirs
}

// orphanAge is how old a cgroup's directory must be, by its modification time, to count as left
// behind: another agent may be about to use a younger one.
const orphanAge = 10 * time.Minute

// Sweep removes the cgroups in which nothing runs, except those of known pods, by UID.
func (t *CgroupTree) Sweep(known map[string]bool) error {
	named := map[string]bool{}
	for uid := range known {
		if t.systemd {
			uid = escape(uid)
		}
		named[uid] = true
	}
	var problems []error
	for _, uid := range t.uids() {
		if named[uid] || t.inUse(uid) {
			continue
		}
		problems = append(problems, t.Remove(uid))
	}
	return errors.Join(problems...)
}

// uids returns the UIDs of the pods that have a cgroup, as they are in the names of cgroups:
// escaped in those of slices.
func (t *CgroupTree) uids() []string {
	var uids []string
	for _, class := range classes {
		for _, dir := range t.dirs(t.class(class)) {
			entries, err := os.ReadDir(dir)
			if err != nil {
				continue
			}
			for _, e := range entries {
				name := e.Name()
				if t.systemd {
					name = strings.TrimPrefix(strings.TrimSuffix(name, ".slice"), strings.TrimSuffix(slice(t.class(class)), ".slice")+"-")
				}
				if uid, ok := strings.CutPrefix(name, "pod"); ok && e.IsDir() && !slices.Contains(uids, uid) {
					uids = append(uids, uid)
				}
			}
		}
	}
	return uids
}

// inUse reports whether the cgroup of a pod has processes or is younger than orphanAge.
func (t *CgroupTree) inUse(uid string) bool {
	for _, class := range classes {
		for _, dir := range t.dirs(t.pod(uid, class)) {
			info, err := os.Stat(dir)
			if err != nil {
				continue
			}
			if time.Since(info.ModTime()) < orphanAge {
				return true
			}
			busy := false
			filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
				if err == nil && d.Name() == "cgroup.procs" {
					data, err := os.ReadFile(path)
					busy = busy || err != nil || len(data) > 0
				}
				return nil
			})
			if busy {
				return true
			}
		}
	}
	return false
}

// writePages writes the limit of each size. dir is the cgroup's directory in the hierarchy
// of the hugetlb controller, "" if none is mounted on cgroup v1. The files are written
// directly because systemd has no such limits.
func writePages(dir string, unified bool, sizes []string, pages podspec.Pages) error {
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
