package layer

import (
	"archive/tar"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/userns"
)

// mode returns the permissions of hdr with the special bits, for mknod and chmod.
func mode(hdr *tar.Header) uint32 { return uint32(hdr.Mode) & 0o7777 }

// umask reads the process's file mode creation mask. umask(2) can only read it by changing it,
// for all threads; /proc has shown it since Linux 4.7.
func umask() uint32 {
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return 0o777
	}
	_, rest, _ := strings.Cut(string(status), "\nUmask:")
	field, _, _ := strings.Cut(rest, "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(field), 8, 32)
	if err != nil {
		return 0o777 // chmod everything
	}
	return uint32(mask)
}

// checkOwner refuses an owner that no file can have, or none of crispd's. With squash, root gets what is
// of none of crispd's, without the bits by which it would run as root.
func checkOwner(hdr *tar.Header, squash bool) error {
	if hdr.Uid < 0 || hdr.Gid < 0 || hdr.Uid > math.MaxUint32-1 || hdr.Gid > math.MaxUint32-1 {
		return fault.Invalid.Errorf("owner %d:%d is out of range", hdr.Uid, hdr.Gid)
	}
	if own := userns.Own(); own != nil && (uint32(hdr.Uid) >= own.UID.Length || uint32(hdr.Gid) >= own.GID.Length) {
		if squash {
			hdr.Uid, hdr.Gid, hdr.Mode = 0, 0, hdr.Mode&^(unix.S_ISUID|unix.S_ISGID)
			return nil
		}
		return fault.Invalid.Errorf("owner %d:%d is not among the %d users and %d groups of crispd's user namespace (image.ignore_chown_errors gives it to root)", hdr.Uid, hdr.Gid, own.UID.Length, own.GID.Length)
	}
	return nil
}

// device returns the type and the number of a device, as in st_mode and st_rdev.
func device(hdr *tar.Header) (kind uint32, dev uint64, err error) {
	if hdr.Devmajor < 0 || hdr.Devmajor >= 1<<12 || hdr.Devminor < 0 || hdr.Devminor >= 1<<20 {
		return 0, 0, fault.Invalid.Errorf("device %d:%d is out of range", hdr.Devmajor, hdr.Devminor)
	}
	if kind = unix.S_IFCHR; hdr.Typeflag == tar.TypeBlock {
		kind = unix.S_IFBLK
	}
	return kind, unix.Mkdev(uint32(hdr.Devmajor), uint32(hdr.Devminor)), nil
}

// maxAttrNames is the maximum length of a file's list of attributes, each name with its null byte:
// listxattr(2) returns no longer one (XATTR_LIST_MAX).
const maxAttrNames = 64 << 10

// xattrs returns copies of the extended attributes of hdr that will be set.
func xattrs(hdr *tar.Header) (map[string]string, error) {
	var attrs map[string]string
	size := 0
	for record, value := range hdr.PAXRecords {
		key, ok := strings.CutPrefix(record, "SCHILY.xattr.")
		if !ok {
			continue
		}
		if strings.HasPrefix(key, overlayPrefix) {
			return nil, fault.Invalid.Errorf("attribute %s is overlayfs's own", key)
		}
		if !IsKept(key) {
			continue
		}
		if attrs == nil {
			attrs = make(map[string]string)
		}
		if size += len(key) + 1; size > maxAttrNames {
			return nil, fault.Invalid.Errorf("names of the file's attributes have more than %d bytes", maxAttrNames)
		}
		attrs[strings.Clone(key)] = strings.Clone(value)
	}
	return attrs, nil
}

// IsKept reports whether the files of an image may have this extended attribute. Labels, ACLs
// and trusted attributes belong to the host, and security.evm is valid only on the file system
// on which it was computed.
func IsKept(key string) bool {
	return key == "security.capability" || key == imaSignature || strings.HasPrefix(key, "user.") && !strings.HasPrefix(key, overlayPrefix)
}

// imaSignature is the attribute by which a host with IMA appraisal recognizes files that it may
// run.
const imaSignature = "security.ima"

// mayLack reports whether a file is usable without the attribute that could not be set: user
// attributes exist only on regular files and directories, and not every file system supports
// them, or signatures. A program would not work without its capabilities.
func mayLack(key string, err error) bool {
	return key != "security.capability" && (err == unix.ENOTSUP || err == unix.EPERM)
}

func times(hdr *tar.Header) [2]unix.Timespec {
	mtime := timespec(hdr.ModTime)
	if hdr.AccessTime.IsZero() {
		return [2]unix.Timespec{mtime, mtime}
	}
	return [2]unix.Timespec{timespec(hdr.AccessTime), mtime}
}

func timespec(t time.Time) unix.Timespec {
	return unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
}

func setTime(dir int, base string, at [2]unix.Timespec) error {
	if base == "" {
		base = "."
	}
	return os.NewSyscallError("utimensat", unix.UtimesNanoAt(dir, base, at[:], unix.AT_SYMLINK_NOFOLLOW))
}

// owner sets owner, mode and extended attributes of base, which is not a symlink, in an order in
// which none resets another.
func (u *unpacker) owner(dir int, base string, hdr *tar.Header, attrs map[string]string) error {
	if err := unix.Fchownat(dir, base, hdr.Uid, hdr.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return os.NewSyscallError("fchownat", err)
	}
	if hdr.Typeflag != tar.TypeSymlink {
		if err := unix.Fchmodat(dir, base, mode(hdr), 0); err != nil {
			return os.NewSyscallError("fchmodat", err)
		}
	}
	for key, value := range attrs {
		err := unix.Lsetxattr(FDPath(dir)+"/"+base, key, []byte(value), 0)
		if err != nil && !mayLack(key, err) {
			return fmt.Errorf("set attribute %s: %w", key, err)
		}
	}
	return nil
}

// attributes is like owner, and sets the times too.
func (u *unpacker) attributes(dir int, base string, hdr *tar.Header, attrs map[string]string) error {
	if err := u.owner(dir, base, hdr, attrs); err != nil {
		return err
	}
	return setTime(dir, base, times(hdr))
}

// FDPath returns a path of the open file fd by its descriptor, whatever its own path is.
func FDPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
