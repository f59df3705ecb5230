package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/crisp-cri/crisp/image/blob"
	"golang.org/x/sys/unix"
)

// flushSize is the size from which a file's pages are written out at once, which leaves less for
// the syncfs(2) at the end of the pull.
const flushSize = 256 << 10

// file makes a regular file.
func (u *unpacker) file(ctx context.Context, dir int, name, base string, hdr *tar.Header, attrs map[string]string, content io.Reader) (err error) {
	sparse := isSparse(hdr)
	if sparse {
		if err := u.growth.claim(hdr.Size); err != nil {
			return err
		}
	}
	var fd int
	err = u.make(dir, name, base, func() (err error) {
		fd, err = unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode(hdr)&0o777)
		return err
	})
	if err != nil {
		return err
	}
	defer func() {
		if cerr := unix.Close(fd); err == nil && cerr != nil {
			err = os.NewSyscallError("close", cerr)
		}
	}()
	// A container's files may be sparse, which a plain stream does not show.
	if err := u.fill(ctx, fd, content, hdr.Size, sparse || u.dirs.plain); err != nil {
		return err
	}
	// Even if it is root's: in a set-group-ID directory it has inherited the group.
	if err := unix.Fchown(fd, hdr.Uid, hdr.Gid); err != nil {
		return os.NewSyscallError("fchown", err)
	}
	// After chown, which clears the set-user-ID bit and the capabilities.
	if m := mode(hdr); m&(u.umask|0o7000) != 0 {
		if err := unix.Fchmod(fd, m); err != nil {
			return os.NewSyscallError("fchmod", err)
		}
	}
	for key, value := range attrs {
		if err := unix.Fsetxattr(fd, key, []byte(value), 0); err != nil && !mayLack(key, err) {
			return fmt.Errorf("set attribute %s: %w", key, err)
		}
	}
	return setTime(dir, base, times(hdr))
}

// fill writes size bytes of content to fd. In a sparse file it skips blocks of zeroes.
func (u *unpacker) fill(ctx context.Context, fd int, content io.Reader, size int64, sparse bool) error {
	for left := size; left > 0; {
		n, err := io.ReadFull(content, u.buf[:min(left, int64(len(u.buf)))])
		if err != nil {
			return blob.ArchiveError(err)
		}
		left -= int64(n)
		if sparse && isZero(u.buf[:n]) {
			if err := ctx.Err(); err != nil {
				return err
			}
			if _, err := unix.Seek(fd, int64(n), io.SeekCurrent); err != nil {
				return os.NewSyscallError("lseek", err)
			}
			continue
		}
		for b := u.buf[:n]; len(b) > 0; {
			m, err := unix.Write(fd, b)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return os.NewSyscallError("write", err)
			}
			u.growth.wrote(m)
			b = b[m:]
		}
	}
	if sparse {
		if err := unix.Ftruncate(fd, size); err != nil {
			return os.NewSyscallError("ftruncate", err)
		}
	} else {
		u.growth.ended(size)
	}
	if size >= flushSize {
		_ = unix.SyncFileRange(fd, 0, 0, unix.SYNC_FILE_RANGE_WRITE) // a hint; syncfs reports errors
	}
	return nil
}

func isZero(b []byte) bool {
	var zeroes [4096]byte
	for len(b) > len(zeroes) {
		if !bytes.Equal(b[:len(zeroes)], zeroes[:]) {
			return false
		}
		b = b[len(zeroes):]
	}
	return bytes.Equal(b, zeroes[:len(b)])
}

// isSparse reports whether archive/tar fills holes when hdr's content is read.
func isSparse(hdr *tar.Header) bool {
	if hdr.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for key := range hdr.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}
