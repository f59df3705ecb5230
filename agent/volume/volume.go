// Package volume makes the volumes of pods on this node. All of a pod's volumes
// lie below its directory, as the kubelet lays them out:
//
//	pods/<uid>/volumes/kubernetes.io~empty-dir/<name>    disk, or a tmpfs
//	pods/<uid>/volumes/kubernetes.io~configmap/<name>    files, changed all at once (files.go)
//	pods/<uid>/volumes/kubernetes.io~secret/<name>       likewise, in a tmpfs
//	pods/<uid>/volumes/kubernetes.io~downward-api/<name>
//	pods/<uid>/volumes/kubernetes.io~projected/<name>
//	pods/<uid>/plugins/<plugin>/<name>/ready             the volume has its owner
//	pods/<uid>/volume-subpaths/<name>/<container>/<i>    mounts of what subPath names
//	pvc/<namespace>/<claim>                              outlives pods; never removed here
//
// A volume is made before each start of a container, so making is repeatable; it
// is how tmpfs come back after a reboot. What pods write into their volumes is
// hostile: paths below a volume are only followed in subpath.go, and its directories
// walked by descriptors, with internal/tree.
package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/crisp-cri/crisp/internal/tree"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Objects are what volumes show. One that does not exist is an error of kind
// fault.NotFound.
type Objects interface {
	ConfigMap(namespace, name string) (*v1.ConfigMap, error)
	Secret(namespace, name string) (*v1.Secret, error)
	Claim(namespace, name string) (*v1.PersistentVolumeClaim, error)
}

// Facts are what is known of a pod. The downward API shows its fields and resources.
type Facts interface {
	Field(pod *v1.Pod, path string) (string, error)
	Resource(pod *v1.Pod, ref *v1.ResourceFieldSelector) (string, error)
	// Memory is how much the pod can have, in bytes; 0 if that is not known.
	Memory(pod *v1.Pod) int64
}

// A Maker makes volumes below a directory. It is safe for use by all goroutines.
type Maker struct {
	root    string
	objects Objects
	facts   Facts

	mu   sync.Mutex
	pods map[types.UID]*sync.Mutex // one at a time works on a pod's volumes; guarded by mu
}

// New returns a Maker for the agent's directory root.
func New(root string, o Objects, f Facts) *Maker {
	return &Maker{root: root, objects: o, facts: f, pods: map[types.UID]*sync.Mutex{}}
}

// lock waits until nobody else works on the pod's volumes.
func (m *Maker) lock(uid types.UID) (unlock func()) {
	m.mu.Lock()
	pod, ok := m.pods[uid]
	if !ok {
		pod = &sync.Mutex{}
		m.pods[uid] = pod
	}
	m.mu.Unlock()
	pod.Lock()
	return pod.Unlock
}

func (m *Maker) podDir(uid types.UID) string { return filepath.Join(m.root, "pods", string(uid)) }

func (m *Maker) subpaths(uid types.UID) string {
	return filepath.Join(m.podDir(uid), "volume-subpaths")
}

// plugin is the kubelet's name for the kind of a volume that lies below the
// pod's directory; "" for one that does not.
func plugin(v *v1.Volume) string {
	switch {
	case v.EmptyDir != nil:
		return "kubernetes.io~empty-dir"
	case v.ConfigMap != nil:
		return "kubernetes.io~configmap"
	case v.Secret != nil:
		return "kubernetes.io~secret"
	case v.DownwardAPI != nil:
		return "kubernetes.io~downward-api"
	case v.Projected != nil:
		return "kubernetes.io~projected"
	}
	return ""
}

// Path is where the volume lies on this node; "" for an image, which only the
// runtime can mount.
func (m *Maker) Path(pod *v1.Pod, v *v1.Volume) string {
	switch {
	case v.HostPath != nil:
		return v.HostPath.Path
	case v.PersistentVolumeClaim != nil:
		return m.claimDir(pod.Namespace, v.PersistentVolumeClaim.ClaimName)
	case v.Image != nil:
		return ""
	}
	return filepath.Join(m.podDir(pod.UID), "volumes", plugin(v), v.Name)
}

// Measured are the directories of a pod's volumes whose size is of interest: those that
// the agent has made, by name.
func (m *Maker) Measured(pod *v1.Pod) map[string]string {
	return m.dirs(pod, func(v *v1.Volume) bool { return plugin(v) != "" || v.PersistentVolumeClaim != nil })
}

// EmptyDirs are the directories of a pod's emptyDir volumes, by name.
func (m *Maker) EmptyDirs(pod *v1.Pod) map[string]string {
	return m.dirs(pod, func(v *v1.Volume) bool { return v.EmptyDir != nil })
}

// dirs are the directories of those of a pod's volumes that are of interest, by name.
func (m *Maker) dirs(pod *v1.Pod, of func(*v1.Volume) bool) map[string]string {
	dirs := map[string]string{}
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; of(v) {
			dirs[v.Name] = m.Path(pod, v)
		}
	}
	return dirs
}

// Make makes all volumes of the pod, or what is missing of them, and brings what
// they show of objects up to date.
func (m *Maker) Make(pod *v1.Pod) error {
	defer m.lock(pod.UID)()
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if err := m.make(pod, v); err != nil {
			return fmt.Errorf("MountVolume.SetUp failed for volume %q: %w", v.Name, err)
		}
	}
	return nil
}

func (m *Maker) make(pod *v1.Pod, v *v1.Volume) error {
	switch {
	case v.HostPath != nil:
		return checkHostPath(v.HostPath)
	case v.EmptyDir != nil:
		return m.makeEmptyDir(pod, v)
	case v.PersistentVolumeClaim != nil:
		return m.makeClaim(pod, v)
	case v.Image != nil:
		return nil
	case plugin(v) == "":
		return errors.New("its kind is not supported")
	}
	return m.makeFiles(pod, v)
}

// Refresh brings what the volumes of a pod show of objects up to date. What an
// object that has gone showed stays. It makes no volume: one that has no files yet
// is left to Make.
func (m *Maker) Refresh(pod *v1.Pod) error {
	defer m.lock(pod.UID)()
	var problems []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if _, err := os.Lstat(filepath.Join(m.Path(pod, v), dataLink)); err != nil || !showsObjects(v) {
			continue
		}
		if err := m.writeFiles(pod, v); err != nil {
			problems = append(problems, fmt.Errorf("volume %s: %w", v.Name, err))
		}
	}
	return errors.Join(problems...)
}

func showsObjects(v *v1.Volume) bool { return plugin(v) != "" && v.EmptyDir == nil }

// Remove removes the volumes of a pod of which nothing runs. It unmounts what
// this package has mounted and refuses as long as anything else is mounted below:
// what is behind a mount is not the agent's. Claims stay.
func (m *Maker) Remove(uid types.UID) error {
	defer m.lock(uid)()
	dir := m.podDir(uid)
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	// The innermost first, and of several at one place the uppermost.
	slices.SortStableFunc(mounts, func(a, b *mountinfo.Info) int { return len(b.Mountpoint) - len(a.Mountpoint) })
	for _, mount := range mounts {
		if !m.ours(uid, mount) {
			return fmt.Errorf("%s is still mounted", mount.Mountpoint)
		}
		if err := unix.Unmount(mount.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL {
			return fmt.Errorf("unmount %s: %w", mount.Mountpoint, err)
		}
	}
	for _, name := range []string{"volume-subpaths", "volumes", "plugins"} {
		if err := tree.Remove(context.Background(), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pods, uid)
	return nil
}

// ours reports whether a mount is one that this package makes: a tmpfs in the
// place of a volume, or whatever is mounted in the place of a subpath.
func (m *Maker) ours(uid types.UID, mount *mountinfo.Info) bool {
	if rest, err := filepath.Rel(m.subpaths(uid), mount.Mountpoint); err == nil && depth(rest) == 3 {
		return true
	}
	rest, err := filepath.Rel(filepath.Join(m.podDir(uid), "volumes"), mount.Mountpoint)
	return err == nil && depth(rest) == 2 && (mount.FSType == "tmpfs" || mount.FSType == "hugetlbfs")
}

// depth is how many directories down a relative path leads; 0 if it leads out.
func depth(path string) int {
	if !filepath.IsLocal(path) || path == "." {
		return 0
	}
	return strings.Count(path, "/") + 1
}

// first calls once, unless it was done for this volume already, as far back as
// the volume's content goes.
func (m *Maker) first(pod *v1.Pod, kind, name string, once func() error) error {
	dir := filepath.Join(m.podDir(pod.UID), "plugins", kind, name)
	ready := filepath.Join(dir, "ready")
	if _, err := os.Stat(ready); err == nil {
		return nil
	}
	if err := once(); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	return os.WriteFile(ready, nil, 0o640)
}

func (m *Maker) claimDir(namespace, name string) string {
	return filepath.Join(m.root, "pvc", namespace, name)
}

// makeClaim makes the directory that a claim stands for, unless it is there.
func (m *Maker) makeClaim(pod *v1.Pod, v *v1.Volume) error {
	name := v.PersistentVolumeClaim.ClaimName
	claim, err := m.objects.Claim(pod.Namespace, name)
	if err != nil {
		return err
	}
	if ptr.Deref(claim.Spec.VolumeMode, "") == v1.PersistentVolumeBlock {
		return fmt.Errorf("claim %s wants a block device, and every claim is a directory here", name)
	}
	dir := m.claimDir(pod.Namespace, name)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := m.newClaim(dir); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if m.claimReadOnly(pod, v) {
		return nil
	}
	return m.first(pod, "kubernetes.io~local-volume", v.Name, func() error { return own(dir, pod, false) })
}

// newClaim makes the directory of a claim, which any user of the containers may write
// to from the first moment that it is there.
func (m *Maker) newClaim(dir string) error {
	m.mu.Lock() // other pods may have the claim too
	defer m.mu.Unlock()
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	unfinished := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)) // no claim has such a name
	if err := os.MkdirAll(unfinished, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(unfinished, 0o777); err != nil {
		return err
	}
	return os.Rename(unfinished, dir)
}

// claimReadOnly reports whether a volume's claim may only be read.
func (m *Maker) claimReadOnly(pod *v1.Pod, v *v1.Volume) bool {
	if v.PersistentVolumeClaim.ReadOnly {
		return true
	}
	claim, err := m.objects.Claim(pod.Namespace, v.PersistentVolumeClaim.ClaimName)
	if err != nil {
		return false
	}
	modes := claim.Spec.AccessModes
	return len(modes) > 0 && !slices.ContainsFunc(modes, func(mode v1.PersistentVolumeAccessMode) bool { return mode != v1.ReadOnlyMany })
}

// ReadOnly reports whether a volume may only be read, whatever the container
// says.
func (m *Maker) ReadOnly(pod *v1.Pod, v *v1.Volume) bool {
	return showsObjects(v) || v.Image != nil || v.PersistentVolumeClaim != nil && m.claimReadOnly(pod, v)
}
