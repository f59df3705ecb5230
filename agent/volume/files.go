package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// A volume with the content of objects is a directory of this form:
//
//	..2026_11_22_01_02_03.123456789/   the files
//	..data -> ..2026_11_22_01_02_03.123456789
//	a -> ..data/a
//	dir -> ..data/dir
//
// A change makes a new directory and renames a new link over ..data: a reader sees either all
// old files or all new ones.
const (
	dataLink = "..data"
	dataNew  = "..data_tmp"
)

// A file is a file in such a volume.
type file struct {
	data []byte
	mode fs.FileMode
}

// makeFiles makes a volume with the content of objects. It is in memory, because it may have
// secrets, unless it is of a ConfigMap.
func (m *Maker) makeFiles(pod *v1.Pod, v *v1.Volume) error {
	dir := m.Path(pod, v)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	if v.ConfigMap == nil {
		mounted, err := mountinfo.Mounted(dir)
		if err == nil && !mounted {
			err = mountMemory(dir, 0)
		}
		if err != nil {
			return err
		}
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		return err
	}
	return m.writeFiles(pod, v)
}

// writeFiles updates the volume's files to its objects.
func (m *Maker) writeFiles(pod *v1.Pod, v *v1.Volume) error {
	files, err := m.files(pod, v)
	if err != nil {
		return err
	}
	for path := range files {
		if !filepath.IsLocal(path) || strings.HasPrefix(path, "..") {
			return fmt.Errorf("path %q leads out of the volume", path)
		}
	}
	return write(m.Path(pod, v), files, nested(v.Name, pod), pod)
}

// nested returns the mount points of other volumes below a volume in the pod's containers, as
// relative paths. The volume is read-only in the container, so the runtime cannot make them
// there.
func nested(name string, pod *v1.Pod) []string {
	var places []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, outer := range c.VolumeMounts {
			if outer.Name != name || outer.SubPath != "" || outer.SubPathExpr != "" {
				continue
			}
			for _, inner := range c.VolumeMounts {
				rest, err := filepath.Rel(filepath.Join("/", outer.MountPath), filepath.Join("/", inner.MountPath))
				if err == nil && rest != "." && !strings.HasPrefix(rest, "..") {
					places = append(places, rest)
				}
			}
		}
	}
	return places
}

// makePlaces makes directories for the mounts that are not on one of the volume's files.
func makePlaces(dir string, places []string, files map[string]file) error {
	shown := tops(files)
	for _, place := range places {
		if top, _, _ := strings.Cut(place, "/"); slices.Contains(shown, top) {
			continue
		}
		if err := os.MkdirAll(filepath.Join(dir, place), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// write replaces the files of dir atomically, unless nothing has changed. places are the mount
// points of other volumes.
func write(dir string, files map[string]file, places []string, pod *v1.Pod) error {
	old, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !filepath.IsLocal(old) || strings.Contains(old, "/") {
		old = "" // of another program
	}
	if old != "" && same(filepath.Join(dir, old), files, pod) {
		return errors.Join(link(dir, files), makePlaces(dir, places, files))
	}
	now, err := os.MkdirTemp(dir, time.Now().UTC().Format("..2006_01_02_15_04_05."))
	if err != nil {
		return err
	}
	if err := fill(now, files, pod); err != nil {
		return errors.Join(err, os.RemoveAll(now))
	}
	if err := swap(dir, filepath.Base(now), files); err != nil {
		return errors.Join(err, os.RemoveAll(now))
	}
	if err := sweep(dir, filepath.Base(now), files, places); err != nil {
		return err
	}
	return makePlaces(dir, places, files)
}

// swap makes the volume show the files in now, a directory in dir.
func swap(dir, now string, files map[string]file) error {
	if err := link(dir, files); err != nil {
		return err
	}
	os.Remove(filepath.Join(dir, dataNew)) // may be left from a crash; if it stays, Symlink fails
	if err := os.Symlink(now, filepath.Join(dir, dataNew)); err != nil {
		return err
	}
	return os.Rename(filepath.Join(dir, dataNew), filepath.Join(dir, dataLink))
}

// fill writes the files below dir and sets the pod's fsGroup on them.
func fill(dir string, files map[string]file, pod *v1.Pod) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for path, f := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.data, f.mode); err != nil {
			return err
		}
		if err := os.Chmod(path, f.mode); err != nil { // despite the umask
			return err
		}
	}
	return own(dir, pod, true)
}

// same reports whether dir has exactly these files, with these modes.
func same(dir string, files map[string]file, pod *v1.Pod) bool {
	extra := fs.FileMode(0)
	if sc := pod.Spec.SecurityContext; sc != nil && sc.FSGroup != nil {
		extra = readMask
	}
	left := len(files)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		want, ok := files[name]
		info, err := d.Info()
		if err != nil || !ok || !info.Mode().IsRegular() || info.Mode().Perm() != want.mode.Perm()|extra {
			return errDiffers
		}
		data, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(data, want.data) {
			return errDiffers
		}
		left--
		return nil
	})
	return err == nil && left == 0
}

var errDiffers = errors.New("files differ")

// tops returns the first elements of the files' paths, sorted.
func tops(files map[string]file) []string {
	names := map[string]bool{}
	for path := range files {
		top, _, _ := strings.Cut(path, "/")
		names[top] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// link makes the links in dir that point through ..data.
func link(dir string, files map[string]file) error {
	for _, top := range tops(files) {
		target := filepath.Join(dataLink, top)
		if got, err := os.Readlink(filepath.Join(dir, top)); err == nil && got == target {
			continue
		}
		err := os.Symlink(target, filepath.Join(dir, top))
		if info, statErr := os.Lstat(filepath.Join(dir, top)); statErr == nil && info.IsDir() {
			err = nil // another volume is mounted there, and hides the file
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sweep removes links that are no longer wanted and old directories of files, including the
// leftovers of a crash. It keeps mount points of containers: the kernel would unmount them
// there.
func sweep(dir, now string, files map[string]file, places []string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	wanted := tops(files)
	for _, place := range places {
		top, _, _ := strings.Cut(place, "/")
		wanted = append(wanted, top)
	}
	for _, e := range entries {
		name := e.Name()
		if name == now || name == dataLink || slices.Contains(wanted, name) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil && !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return nil
}
