package volume

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/internal/tree"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// makeEmptyDir makes the directory of a volume and mounts its medium there, unless that is
// already mounted: the content lives as long as the pod, not only as long as its sandbox. A
// reboot empties a tmpfs.
func (m *Maker) makeEmptyDir(pod *v1.Pod, v *v1.Volume) error {
	path := m.Path(pod, v)
	if err := os.MkdirAll(path, 0o750); err != nil {
		return err
	}
	if v.EmptyDir.Medium == v1.StorageMediumDefault {
		return m.first(pod, plugin(v), v.Name, func() error { return open(path, pod) })
	}
	mounted, err := mountinfo.Mounted(path)
	if err != nil || mounted {
		return err
	}
	if page, ok := strings.CutPrefix(string(v.EmptyDir.Medium), string(v1.StorageMediumHugePages)); ok {
		err = mountHugePages(path, strings.TrimPrefix(page, "-"), pod)
	} else {
		err = mountMemory(path, memoryLimit(m.inputs.Facts(pod).MostMemory(), v.EmptyDir))
	}
	if err != nil {
		return err
	}
	return open(path, pod)
}

// open sets the permissions 0777 and the pod's fsGroup on a directory.
func open(path string, pod *v1.Pod) error {
	info, err := os.Stat(path)
	if err == nil && info.Mode().Perm() != 0o777 { // a tmpfs keeps its sticky bit
		err = os.Chmod(path, 0o777)
	}
	if err != nil {
		return err
	}
	return own(path, pod, false)
}

// mountMemory mounts a tmpfs, without swap if the kernel supports that. limit is its size in
// bytes; 0 is the kernel's default, half of the memory (tmpfs(5)).
func mountMemory(path string, limit int64) error {
	options := "mode=1777"
	if limit > 0 {
		options += ",size=" + strconv.FormatInt(limit, 10)
	}
	err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options+","+noSwap)
	if err == unix.EINVAL {
		err = unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
	}
	if err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", path, err)
	}
	return nil
}

// memoryLimit returns the size of a volume in memory, in bytes: its sizeLimit, but no more than
// memory, the pod's, which is 0 if unknown; 0 if there is neither.
func memoryLimit(memory int64, e *v1.EmptyDirVolumeSource) int64 {
	if e.SizeLimit == nil || e.SizeLimit.IsZero() || memory != 0 && memory < e.SizeLimit.Value() {
		return memory
	}
	return e.SizeLimit.Value()
}

// mountHugePages mounts a hugetlbfs with pages of the size page. "" stands for the one size that
// the pod requests; a pod that requests several must name one.
func mountHugePages(path, page string, pod *v1.Pod) error {
	if page == "" {
		sizes := pageSizes(&pod.Spec)
		if len(sizes) != 1 {
			return fmt.Errorf("medium HugePages needs a pod that asks for one size of huge pages, not for %d", len(sizes))
		}
		page = sizes[0]
	}
	size, err := resource.ParseQuantity(page)
	if err != nil {
		return fmt.Errorf("medium HugePages-%s: %w", page, err)
	}
	options := "pagesize=" + strconv.FormatInt(size.Value(), 10)
	if err := unix.Mount("nodev", path, "hugetlbfs", 0, options); err != nil {
		return fmt.Errorf("mount hugetlbfs of pages of %s on %s: %w", page, path, err)
	}
	return nil
}

// pageSizes returns the sizes of the huge pages that a pod requests, for its containers and
// init containers or as a whole: "2Mi".
func pageSizes(spec *v1.PodSpec) []string {
	all := v1.ResourceList{}
	if spec.Resources != nil {
		maps.Copy(all, spec.Resources.Limits)
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		maps.Copy(all, c.Resources.Limits)
	}
	var sizes []string
	for name := range all {
		if size, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix); ok {
			sizes = append(sizes, size)
		}
	}
	return sizes
}

// Usage returns the bytes on disk and the inodes in use by a directory and everything below it.
// It counts a file with several links once, and leaves out mounts.
func Usage(dir string) (bytes, inodes int64) {
	seen := map[uint64]bool{} // of files with several links
	var top uint64
	// After an error, the partial count is better than none.
	_ = tree.Walk(context.Background(), dir, tree.Options{}, func(f *tree.File) error {
		if f.IsTop() {
			top = uint64(f.Stat.Dev)
		}
		if uint64(f.Stat.Dev) != top {
			return nil // a mount, which Walk does not enter
		}
		if f.Stat.Nlink > 1 && !f.IsDir() {
			if seen[f.Stat.Ino] {
				return nil
			}
			seen[f.Stat.Ino] = true
		}
		bytes += f.Stat.Blocks * 512
		inodes++
		return nil
	})
	return bytes, inodes
}

// noSwap is the mount option of a tmpfs that is not swapped out (tmpfs(5); Linux 6.4).
const noSwap = "noswap"

// MaySwap reports whether volumes in memory, which may hold Secrets, can be written to a
// disk: the node has swap, and its kernel does not know the option noswap.
func MaySwap() bool {
	table, err := os.ReadFile("/proc/swaps")
	return err == nil && swaps(table) && !knows(noSwap)
}

// swaps reports whether /proc/swaps lists anything below its heading (proc_swaps(5)).
func swaps(table []byte) bool { return bytes.Count(table, []byte("\n")) > 1 }

// knows reports whether the kernel has this mount option of tmpfs (fsconfig(2)).
func knows(option string) bool {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(fs)
	return unix.FsconfigSetFlag(fs, option) == nil
}
