package layer

import (
	"archive/tar"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Header returns the tar header of the file at path, whose name in the stream is name ("": the
// root) and whose status is st. It has what an image may store of a file: type, mode, owner,
// modification time in nanoseconds, target, device, and the attributes of IsKept. For a socket,
// which no tar stream can hold, it is nil.
func Header(path, name string, st *unix.Stat_t) (*tar.Header, error) {
	if name == "" {
		name = "."
	}
	hdr := &tar.Header{
		Format: tar.FormatPAX, Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec), PAXRecords: map[string]string{},
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		hdr.Typeflag, hdr.Name = tar.TypeDir, name+"/"
	case unix.S_IFREG:
		hdr.Typeflag, hdr.Size = tar.TypeReg, st.Size
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			return nil, err
		}
		hdr.Typeflag, hdr.Linkname = tar.TypeSymlink, target
	case unix.S_IFIFO:
		hdr.Typeflag = tar.TypeFifo
	case unix.S_IFCHR, unix.S_IFBLK:
		hdr.Typeflag = tar.TypeChar
		if st.Mode&unix.S_IFMT == unix.S_IFBLK {
			hdr.Typeflag = tar.TypeBlock
		}
		hdr.Devmajor, hdr.Devminor = int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	default:
		return nil, nil
	}
	if hdr.Typeflag == tar.TypeSymlink {
		return hdr, nil
	}
	attrs, err := attributesOf(path)
	for key, value := range attrs {
		hdr.PAXRecords["SCHILY.xattr."+key] = value
	}
	return hdr, err
}

// attributesOf returns those extended attributes of a file that an image may have.
func attributesOf(path string) (map[string]string, error) {
	n, err := unix.Llistxattr(path, nil)
	if err == unix.ENOTSUP || err == nil && n == 0 {
		return nil, nil // like most files
	}
	buf := make([]byte, 64<<10) // XATTR_LIST_MAX
	if err == nil {
		n, err = unix.Llistxattr(path, buf)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "listxattr", Path: path, Err: err}
	}
	attrs := make(map[string]string)
	value := make([]byte, 64<<10) // XATTR_SIZE_MAX
	for key := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if !IsKept(key) {
			continue
		}
		n, err := unix.Lgetxattr(path, key, value)
		if err != nil {
			return nil, &fs.PathError{Op: "getxattr", Path: path, Err: err}
		}
		attrs[key] = string(value[:n])
	}
	return attrs, nil
}
