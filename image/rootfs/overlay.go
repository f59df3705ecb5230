package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/image/layer"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/tree"
	"github.com/crisp-cri/crisp/internal/userns"
)

// maxOption is the longest value that fsconfig(2) takes, including its null byte.
const maxOption = 256

// An overlay is one overlay mount.
type overlay struct {
	lower       []string // from the highest
	upper, work string   // "" for a read-only mount
	empty       string   // a directory without files, to make up for missing lowers
	label       string   // SELinux; "" = each file keeps its own
	volatile    bool     // nothing written to it is ever synced, see takesVolatile
	numbers     bool     // layers are on other file systems than the writable one: inode numbers must still be stable
	userns      *os.File // maps the owners of files; nil = do not map
}

// mount mounts o at target, a directory.
//
// The new mount API takes any number of layers (lowerdir+, Linux 6.7, 6.6.23). Before that all
// options share one page, which holds some 30 paths of layers; so there, and if a path is too
// long for an option, mount uses the paths of descriptors.
func (o *overlay) mount(target string) error {
	if o.userns != nil {
		return o.mountMapped(target)
	}
	need := 1
	if o.upper == "" {
		need = 2 // overlay: "at least 2 lowerdir are needed while upperdir nonexistent"
	}
	if len(o.lower) < need {
		o.lower = append(o.lower, o.empty)
	}
	if len(o.lower) < need {
		if err := unix.Mount(o.empty, target, "", unix.MS_BIND, ""); err != nil {
			return os.NewSyscallError("mount", err)
		}
		return os.NewSyscallError("mount", unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	}
	if !appendsLayers() {
		return o.mountOld(target)
	}
	return o.mountNew(target)
}

// appendsLayers reports whether overlayfs supports lowerdir+. Before 6.5 this cannot be
// probed: it accepts any option, and fails, with a line in the kernel's log, when the
// file system is created. Later kernels refuse an unknown option at once, as 6.5 itself
// and 6.6 before 6.6.23 refuse lowerdir+.
var appendsLayers = sync.OnceValue(func() bool { return kernel.Probe().AtLeast(6, 5) && knowsPath("lowerdir+") })

// takesVolatile reports whether overlayfs has the option volatile, since Linux 5.10. With it
// fsync(2) and the like do nothing, and neither does an unmount, which otherwise writes all
// that is not yet on the disk of the writable layer, whosever it is. Once such an overlay was
// mounted, its work directory has a mark until it is recreated: overlayfs mounts it no second
// time, as what was written may be lost if the machine was restarted.
var takesVolatile = sync.OnceValue(func() bool { return kernel.Probe().AtLeast(5, 10) })

// knowsPath reports whether overlayfs of Linux 6.5 or later has an option whose value is the
// path of a layer: if so, it looks up the path.
func knowsPath(option string) bool {
	fsfd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(fsfd)
	return unix.FsconfigSetString(fsfd, option, "/proc/self/no-such-layer") == unix.ENOENT
}

func (o *overlay) mountNew(target string) error {
	fsfd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fsfd)
	var open openPaths
	defer open.close()
	for _, dir := range o.lower {
		path, err := open.shorten(dir, len(dir) >= maxOption)
		if err != nil {
			return err
		}
		if err := unix.FsconfigSetString(fsfd, "lowerdir+", path); err != nil {
			return explain(fsfd, "lowerdir+", err)
		}
	}
	options := [][2]string{{"source", "crisp"}, {"index", "off"}, {"metacopy", "off"}}
	if o.numbers {
		options = append(options, [2]string{"xino", "on"})
	}
	if o.upper != "" {
		upper, err := open.shorten(o.upper, len(o.upper) >= maxOption)
		if err != nil {
			return err
		}
		work, err := open.shorten(o.work, len(o.work) >= maxOption)
		if err != nil {
			return err
		}
		options = append(options, [2]string{"upperdir", upper}, [2]string{"workdir", work})
	}
	if o.label != "" {
		options = append(options, [2]string{"context", o.label})
	}
	for _, opt := range options {
		if err := unix.FsconfigSetString(fsfd, opt[0], opt[1]); err != nil {
			return explain(fsfd, opt[0], err)
		}
	}
	for name, is := range map[string]bool{"volatile": o.volatile && takesVolatile(), "userxattr": userns.Own() != nil} {
		if !is {
			continue
		}
		if err := unix.FsconfigSetFlag(fsfd, name); err != nil {
			return explain(fsfd, name, err)
		}
	}
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return explain(fsfd, "create", err)
	}
	attr := 0
	if o.upper == "" {
		attr = unix.MOUNT_ATTR_RDONLY
	}
	mnt, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, attr)
	if err != nil {
		return explain(fsfd, "fsmount", err)
	}
	defer unix.Close(mnt)
	err = unix.MoveMount(mnt, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
	return os.NewSyscallError("move_mount", err)
}

// explain adds the kernel's messages to an error. Each read of the descriptor returns one
// message (fsopen(2)).
func explain(fsfd int, step string, err error) error {
	var said []string
	buf := make([]byte, 512)
	for range 8 {
		n, rerr := unix.Read(fsfd, buf)
		if rerr != nil || n <= 0 {
			break
		}
		said = append(said, strings.TrimSpace(string(buf[:n])))
	}
	if len(said) == 0 {
		return fmt.Errorf("overlay %s: %w", step, err)
	}
	return fmt.Errorf("overlay %s: %w (%s)", step, err, strings.Join(said, "; "))
}

func (o *overlay) mountOld(target string) error {
	var open openPaths
	defer open.close()
	// A colon or comma in a path would need escapes, and long paths do not fit.
	var lower []string
	for _, dir := range o.lower {
		path, err := open.shorten(dir, true)
		if err != nil {
			return err
		}
		lower = append(lower, path)
	}
	data := "index=off,metacopy=off,"
	if o.label != "" {
		data += `context="` + o.label + `",` // its categories contain a comma
	}
	if o.volatile && takesVolatile() {
		data += "volatile,"
	}
	if userns.Own() != nil {
		data += "userxattr,"
	}
	data += "lowerdir=" + strings.Join(lower, ":")
	var flags uintptr
	if o.upper == "" {
		flags = unix.MS_RDONLY
	} else {
		upper, err := open.shorten(o.upper, true)
		if err != nil {
			return err
		}
		work, err := open.shorten(o.work, true)
		if err != nil {
			return err
		}
		data += ",upperdir=" + upper + ",workdir=" + work
	}
	if len(data) >= os.Getpagesize() {
		return fmt.Errorf("overlay of %d layers: %w", len(lower), unix.E2BIG)
	}
	return os.NewSyscallError("mount", unix.Mount("crisp", target, "overlay", flags, data))
}

// openPaths are directories held open to have short names.
type openPaths []int

// shorten returns path itself or, if it must be short, the path of a descriptor of it.
func (p *openPaths) shorten(path string, must bool) (string, error) {
	if !must {
		return path, nil
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: path, Err: err}
	}
	*p = append(*p, fd)
	return layer.FDPath(fd), nil
}

func (p *openPaths) close() {
	for _, fd := range *p {
		unix.Close(fd)
	}
}

// isMountPoint reports whether something is mounted at path.
func isMountPoint(path string) (bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, 0, &st); err != nil {
		return false, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil // Linux 5.8
}

// makePrivate keeps mounts below dir in this mount namespace: on most hosts / is shared, and a
// root file system would appear, and stay, in every namespace created since. If dir is on a
// shared mount it is bind-mounted on itself and made private. That waits until the first mount,
// as by then whoever manages the directory above may have made all of it private.
func makePrivate(dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	on, err := kernel.MountOn(real)
	if err != nil || on == nil || !kernel.IsShared(on) {
		return err
	}
	if err := unix.Mount(real, real, "", unix.MS_BIND, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	if err := unix.Mount("", real, "", unix.MS_PRIVATE, ""); err != nil {
		return errors.Join(os.NewSyscallError("mount", err), unix.Unmount(real, unix.MNT_DETACH))
	}
	return nil
}

// detach unmounts everything mounted at target, a mount point of makeMountPoint, and removes it
// and its directory, with what was written to it while nothing was mounted.
func detach(ctx context.Context, target string) error {
	dir := filepath.Dir(target)
	for _, path := range []string{dir, target} { // older releases mounted on the directory itself
		if err := unmountAll(path); err != nil {
			return err
		}
	}
	return tree.Remove(ctx, dir)
}

// unmountAll unmounts everything mounted at path; it is no error if there is nothing.
func unmountAll(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err == unix.EINVAL || err == unix.ENOENT {
			return nil
		}
		if err != nil {
			return os.NewSyscallError("umount", err)
		}
	}
}
