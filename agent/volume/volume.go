// Package volume makes the volumes of pods on this node. All of a pod's volumes
// lie below its directory, as the kubelet lays them out:
//
//	pods/<uid>/volumes/kubernetes.io~empty-dir/<name>    disk, or a tmpfs
//	pods/<uid>/volumes/kubernetes.io~configmap/<name>    files, changed all at once (files.go)
//	pods/<uid>/volumes/kubernetes.io~secret/<name>       likewise, in a tmpfs
//	pods/<uid>/volumes/kubernetes.io~downward-api/<name>
//	pods/<uid>/volumes/kubernetes.io~projected/<name>
//	pods/<uid>/plugins/<plugin>/<name>/ready             mode and fsGroup of the volume were set
//	pods/<uid>/volume-subpaths/<name>/<container>/<i>    mounts of subPaths
//	pvc/<namespace>/<claim>                              outlives pods; never removed here
//
// Volumes are made before each start of a container, so making them is idempotent; that
// is how a tmpfs comes back after a reboot. What pods write to their volumes is hostile:
// only subpath.go follows paths below a volume, and directories are walked by descriptor,
// with internal/tree.
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

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/crisp-cri/crisp/internal/tree"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Objects returns the objects in volumes; the error for a missing one is fault.NotFound.
type Objects interface {
	ConfigMap(namespace, name string) (*v1.ConfigMap, error)
	Secret(namespace, name string) (*v1.Secret, error)
	Claim(namespace, name string) (*v1.PersistentVolumeClaim, error)
}

// Inputs has what is known of each pod.
type Inputs interface{ Facts(pod *v1.Pod) Facts }

// Facts are the downward API's fields of a pod, and the pod's memory (podspec.Input).
type Facts interface {
	Field(path string) (string, error)
	Resource(c *v1.Container, ref *v1.ResourceFieldSelector) (string, error) // c is nil: ref names the container
	MostMemory() int64                                                       // bytes that the pod can use; 0 if unknown
}

// A Maker makes volumes below a directory. It is safe for concurrent use.
type Maker struct {
	root    string
	objects Objects
	inputs  Inputs

	claims sync.Mutex // held while a claim's directory is made
	pods   sync.Map   // *sync.Mutex by UID, held while a pod's volumes are changed
}

// New returns a Maker. root is the agent's directory, which exists.
func New(root string, o Objects, i Inputs) *Maker {
	if real, err := filepath.EvalSymlinks(root); err == nil {
		root = real // mountinfo has no symbolic links
	}
	return &Maker{root: root, objects: o, inputs: i}
}

// lock locks the volumes of a pod.
func (m *Maker) lock(uid types.UID) (unlock func()) {
	pod, _ := m.pods.LoadOrStore(uid, &sync.Mutex{})
	pod.(*sync.Mutex).Lock()
	return pod.(*sync.Mutex).Unlock
}

func (m *Maker) podDir(uid types.UID) string { return filepath.Join(m.root, "pods", string(uid)) }

func (m *Maker) subpaths(uid types.UID) string {
	return filepath.Join(m.podDir(uid), "volume-subpaths")
}

// plugin returns the kubelet's name for the kind of a volume in the pod's directory; "" for a
// volume elsewhere.
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

// Path returns the path of the volume on this node; "" for an image, which only the runtime
// mounts.
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

// Measured returns the directories of the volumes whose usage is measured, by name: those that
// the agent makes.
func (m *Maker) Measured(pod *v1.Pod) map[string]string {
	return m.dirs(pod, func(v *v1.Volume) bool { return plugin(v) != "" || v.PersistentVolumeClaim != nil })
}

// EmptyDirs returns the directories of a pod's emptyDir volumes, by name.
func (m *Maker) EmptyDirs(pod *v1.Pod) map[string]string {
	return m.dirs(pod, func(v *v1.Volume) bool { return v.EmptyDir != nil })
}

// dirs returns the directories of some of a pod's volumes, by name.
func (m *Maker) dirs(pod *v1.Pod, of func(*v1.Volume) bool) map[string]string {
	dirs := map[string]string{}
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; of(v) {
			dirs[v.Name] = m.Path(pod, v)
		}
	}
	return dirs
}

// Make makes the missing volumes of the pod and updates the others to their objects. As in
// Kubernetes, the pod keeps what it has of an object that no longer exists. Each volume is a part
// of the stage in ctx (internal/stage).
func (m *Maker) Make(ctx context.Context, pod *v1.Pod) error {
	defer m.lock(pod.UID)()
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		end := stage.Enter(ctx, "volume "+v.Name)
		err := m.make(pod, v)
		if errors.Is(err, fault.NotFound) && m.made(pod, v) {
			err = nil // Refresh reports it for files
		}
		if err == nil {
			err = m.share(pod, v)
		}
		end()
		if err != nil {
			return fmt.Errorf("MountVolume.SetUp failed for volume %q: %w", v.Name, err)
		}
	}
	return nil
}

// made reports whether a volume of objects has its files, or the directory of its claim, which the
// pod may write to.
func (m *Maker) made(pod *v1.Pod, v *v1.Volume) bool {
	if showsObjects(v) {
		_, err := os.Lstat(filepath.Join(m.Path(pod, v), dataLink))
		return err == nil
	}
	if v.PersistentVolumeClaim == nil {
		return false
	}
	_, err := os.Stat(m.Path(pod, v))
	return err == nil && m.marked(pod, claimPlugin, v.Name)
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

// Refresh updates the volumes of a pod to their objects. The files of an object that no longer
// exists stay. A volume without files yet is left to Make.
func (m *Maker) Refresh(pod *v1.Pod) error {
	defer m.lock(pod.UID)()
	var problems []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if !showsObjects(v) || !m.made(pod, v) {
			continue
		}
		if err := m.writeFiles(pod, v); err != nil {
			problems = append(problems, fmt.Errorf("volume %s: %w", v.Name, err))
		}
	}
	return errors.Join(problems...)
}

func showsObjects(v *v1.Volume) bool { return plugin(v) != "" && v.EmptyDir == nil }

// Remove removes the volumes, except claims, of a pod that no longer runs. It unmounts the
// mounts of this package, and fails while there is any other mount, whose files it must not
// remove.
func (m *Maker) Remove(uid types.UID) error {
	defer m.lock(uid)()
	dir := m.podDir(uid)
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	// The innermost mount first, and of several at one place the last one.
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
	m.pods.Delete(uid)
	return nil
}

// ours reports whether a mount is one of this package: a tmpfs or hugetlbfs at a volume's place,
// its directory mounted on itself (share.go), or anything at a subPath's place.
func (m *Maker) ours(uid types.UID, mount *mountinfo.Info) bool {
	if rest, err := filepath.Rel(m.subpaths(uid), mount.Mountpoint); err == nil && depth(rest) == 3 {
		return true
	}
	rest, err := filepath.Rel(filepath.Join(m.podDir(uid), "volumes"), mount.Mountpoint)
	return err == nil && depth(rest) == 2 && (mount.FSType == "tmpfs" || mount.FSType == "hugetlbfs" || m.onItself(mount))
}

// depth returns the number of elements in a relative path; 0 if it leads out.
func depth(path string) int {
	if !filepath.IsLocal(path) || path == "." {
		return 0
	}
	return strings.Count(path, "/") + 1
}

// claimPlugin is the kubelet's name for the kind of a claim's volume.
const claimPlugin = "kubernetes.io~local-volume"

// marked reports whether first has called once for this volume of the pod.
func (m *Maker) marked(pod *v1.Pod, kind, name string) bool {
	_, err := os.Stat(filepath.Join(m.podDir(pod.UID), "plugins", kind, name, "ready"))
	return err == nil
}

// first calls once, unless an earlier call has succeeded for this volume of the pod.
func (m *Maker) first(pod *v1.Pod, kind, name string, once func() error) error {
	if m.marked(pod, kind, name) {
		return nil
	}
	if err := once(); err != nil {
		return err
	}
	dir := filepath.Join(m.podDir(pod.UID), "plugins", kind, name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "ready"), nil, 0o640)
}

func (m *Maker) claimDir(namespace, name string) string {
	return filepath.Join(m.root, "pvc", namespace, name)
}

// makeClaim makes the directory of a claim if it does not exist, and gives it to the pod's
// fsGroup.
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
	return m.first(pod, claimPlugin, v.Name, func() error { return own(dir, pod, false) })
}

// newClaim makes the directory of a claim. Every user may write to it from the moment it
// appears.
func (m *Maker) newClaim(dir string) error {
	m.claims.Lock() // other pods may use the claim too
	defer m.claims.Unlock()
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	unfinished := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)) // no claim's name begins with a dot
	if err := os.MkdirAll(unfinished, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(unfinished, 0o777); err != nil {
		return err
	}
	return os.Rename(unfinished, dir)
}

// claimReadOnly reports whether the claim of a volume is read-only.
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

// ReadOnly reports whether a volume is read-only, whatever the container requests.
func (m *Maker) ReadOnly(pod *v1.Pod, v *v1.Volume) bool {
	return showsObjects(v) || v.Image != nil || v.PersistentVolumeClaim != nil && m.claimReadOnly(pod, v)
}
