// Package cgroup keeps the cgroups in which pods run, as the kubelet lays them out
// and with its values:
//
//	cgroupfs                         systemd
//	kubepods                         kubepods.slice
//	├─ pod<uid>                      ├─ kubepods-pod<uid>.slice                 guaranteed
//	├─ burstable                     ├─ kubepods-burstable.slice
//	│  └─ pod<uid>                   │  └─ kubepods-burstable-pod<uid>.slice
//	└─ besteffort                    └─ kubepods-besteffort.slice
//	   └─ pod<uid>                      └─ kubepods-besteffort-pod<uid>.slice
//
// The runtime makes the cgroups of the containers below a pod's. All of this
// outlives the agent: a pod's cgroup follows from its UID and its class.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	v1 "k8s.io/api/core/v1"

	"github.com/crisp-cri/crisp/internal/kernel"
)

// Limits are what a cgroup may have.
type Limits struct {
	Shares uint64 // of CPU time, against other cgroups beside it
	Quota  int64  // µs of CPU time in a Period; 0 is no limit
	Period uint64
	Memory int64 // bytes; 0 is no limit
	Pids   int64 // 0 is no limit
}

// The kernel's and the kubelet's bounds.
const (
	MinShares     = 2 // the least that the kernel takes
	maxShares     = 262_144
	minQuota      = 1_000   // µs; the least that the kernel takes (sched-bwc.rst)
	DefaultPeriod = 100_000 // µs
)

// classes are those that have a cgroup above their pods'.
var classes = []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort}

// Shares are what thousandths of a CPU weigh.
func Shares(milli int64) uint64 { return uint64(min(max(milli*1024/1000, MinShares), maxShares)) }

// Quota is how much of a period thousandths of a CPU are; no CPU is no limit.
func Quota(milli, period int64) int64 {
	if milli == 0 {
		return 0
	}
	return max(milli*period/1000, minQuota)
}

// A Tree is the cgroups below a root. It is safe for use by all goroutines.
type Tree struct {
	root    []string // names of the cgroups on the way to kubepods
	systemd bool

	mu    sync.Mutex
	known map[string]Limits // what was set last, by cgroup; guarded by mu
	pages map[string]Pages  // likewise
}

// Open makes the cgroups of all pods and of the classes below root, "/" being the
// kernel's. Together pods may have what limits say, and any huge pages.
func Open(root string, systemd bool, limits Limits) (*Tree, error) {
	t := &Tree{systemd: systemd, known: map[string]Limits{}, pages: map[string]Pages{}}
	for name := range strings.SplitSeq(strings.Trim(root, "/"), "/") {
		if name != "" {
			t.root = append(t.root, name)
		}
	}
	all := Pages{}
	for _, size := range cgroups.HugePageSizes() {
		all[size] = unbounded
	}
	for _, class := range classes {
		if err := t.set(t.class(class), limits); err != nil {
			return nil, err
		}
		if err := t.setPages(t.class(class), all); err != nil {
			return nil, err
		}
		limits = Limits{Shares: MinShares} // of the classes below the first
	}
	return t, nil
}

// class is the cgroup above the pods of a class.
func (t *Tree) class(class v1.PodQOSClass) []string {
	names := append(slices.Clone(t.root), "kubepods")
	if class != v1.PodQOSGuaranteed {
		names = append(names, strings.ToLower(string(class)))
	}
	return names
}

func (t *Tree) pod(uid string, class v1.PodQOSClass) []string {
	return append(t.class(class), "pod"+uid)
}

// Parent is what CRI calls the parent of a pod's containers. Of a slice the kubelet
// gives the path, with those above it, though its name says the same.
func (t *Tree) Parent(uid string, class v1.PodQOSClass) string {
	return t.path(t.pod(uid, class))
}

// path is where a cgroup is below the root of a hierarchy.
func (t *Tree) path(names []string) string {
	path := "/"
	for i, name := range names {
		if t.systemd {
			name = slice(names[:i+1])
		}
		path = filepath.Join(path, name)
	}
	return path
}

// slice is systemd's name of a cgroup; it has those of all above it in it.
func slice(names []string) string {
	escaped := make([]string, len(names))
	for i, name := range names {
		escaped[i] = strings.ReplaceAll(name, "-", "_")
	}
	return strings.Join(escaped, "-") + ".slice"
}

func (t *Tree) manager(names []string, l Limits) (cgroups.Manager, error) {
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

// set makes the cgroup, unless it is there, and limits it.
func (t *Tree) set(names []string, l Limits) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	path := strings.Join(names, "/")
	m, err := t.manager(names, l)
	if err != nil {
		return fmt.Errorf("cgroup %s: %w", path, err)
	}
	last, set := t.known[path]
	if set && last == l && m.Exists() {
		return nil
	}
	if err := m.Apply(-1); err != nil {
		return fmt.Errorf("make cgroup %s: %w", path, err)
	}
	r := t.resources(m)
	if last.Quota != 0 && l.Quota == 0 {
		r.CpuQuota = -1
	}
	if last.Memory != 0 && l.Memory == 0 {
		r.Memory = -1
	}
	if err := m.Set(r); err != nil {
		return fmt.Errorf("limit cgroup %s: %w", path, err)
	}
	t.known[path] = l
	return nil
}

func (t *Tree) resources(m cgroups.Manager) *cgroups.Resources {
	c, _ := m.GetCgroups() // never fails: it was given
	return c.Resources
}

// Make makes a pod's cgroup, or changes its limits. It is safe to repeat.
func (t *Tree) Make(uid string, class v1.PodQOSClass, l Limits) error {
	return t.set(t.pod(uid, class), l)
}

// Weigh says what all pods of the class burstable weigh together.
func (t *Tree) Weigh(milli int64) error {
	return t.set(t.class(v1.PodQOSBurstable), Limits{Shares: Shares(milli)})
}

// Remove removes a pod's cgroup, in which nothing runs any more.
func (t *Tree) Remove(uid string) error {
	var problems []error
	for _, class := range classes {
		names := t.pod(uid, class)
		m, err := t.manager(names, Limits{})
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
		delete(t.pages, strings.Join(names, "/"))
		t.mu.Unlock()
	}
	return errors.Join(problems...)
}

func (t *Tree) exists(names []string) bool {
	return slices.ContainsFunc(t.dirs(names), func(dir string) bool { _, err := os.Stat(dir); return err == nil })
}

// dirs are where a cgroup is, in each hierarchy.
func (t *Tree) dirs(names []string) []string {
	all, _ := kernel.Hierarchies()
	var dirs []string
	for _, h := range all {
		dirs = append(dirs, filepath.Join(h.Dir, t.path(names)))
	}
	return dirs
}

// orphanAge is how long a cgroup must have been there to be taken for one that was
// left behind: another agent may be just about to use it.
const orphanAge = 10 * time.Minute

// Sweep removes the cgroups of pods that are not known and in which nothing runs.
func (t *Tree) Sweep(known func(uid string) bool) error {
	var problems []error
	for _, uid := range t.uids() {
		if known(uid) || t.inUse(uid) {
			continue
		}
		problems = append(problems, t.Remove(uid))
	}
	return errors.Join(problems...)
}

// uids are those of the pods that have a cgroup; with systemd some letters of
// them are not as they were, which no UID of the agent's has.
func (t *Tree) uids() []string {
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

func (t *Tree) inUse(uid string) bool {
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
			filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
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
