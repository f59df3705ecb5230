package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A hangingFS is a FUSE file system whose server reads requests without answering, as if its
// backend were gone: processes that access it sleep uninterruptibly, and no signal ends them. Its
// root directory answers until hangs is set, so that it can be mounted in a container.
type hangingFS struct {
	dir   string
	fd    int
	hangs atomic.Bool
	ended chan struct{}
}

// Values of linux/fuse.h.
const (
	fuseGetattr = 3
	fuseLookup  = 1
	fuseForget  = 2
	fuseInit    = 26
)

func mountHanging(dir string) (*hangingFS, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/fuse: %w", err)
	}
	f := &hangingFS{dir: dir, fd: fd, ended: make(chan struct{})}
	err = os.Mkdir(dir, 0o755)
	if err == nil {
		err = unix.Mount("soak", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mount FUSE at %s: %w", dir, err), unix.Close(fd))
	}
	go f.serve()
	return f, nil
}

func (f *hangingFS) serve() {
	defer close(f.ended)
	request := make([]byte, 1<<20)
	for {
		n, err := unix.Read(f.fd, request)
		switch {
		case err == unix.EINTR || err == unix.EAGAIN || err == unix.ENOENT:
			continue
		case err != nil || n < 40:
			return // unmounted
		}
		opcode, unique := binary.NativeEndian.Uint32(request[4:]), binary.NativeEndian.Uint64(request[8:])
		var body []any
		errno := int32(0)
		switch {
		case opcode == fuseForget || f.hangs.Load() || opcode == fuseLookup:
			continue
		case opcode == fuseInit: // struct fuse_init_out
			body = []any{uint32(7), uint32(31), uint32(4096), uint32(0), uint16(12), uint16(9), uint32(4096), uint32(1), [9]uint32{}}
		case opcode == fuseGetattr: // struct fuse_attr_out, not cacheable
			body = []any{uint64(0), uint32(0), uint32(0), uint64(1), [5]uint64{}, [3]uint32{}, uint32(unix.S_IFDIR | 0o755), uint32(2), [5]uint32{}}
		default:
			errno = -int32(unix.ENOSYS)
		}
		var b bytes.Buffer
		for _, v := range body {
			binary.Write(&b, binary.NativeEndian, v)
		}
		answer := binary.NativeEndian.AppendUint32(nil, uint32(16+b.Len()))
		answer = binary.NativeEndian.AppendUint32(answer, uint32(errno))
		answer = binary.NativeEndian.AppendUint64(answer, unique)
		unix.Write(f.fd, append(answer, b.Bytes()...))
	}
}

// end fails all waiting requests, and unmounts the file system.
func (f *hangingFS) end() error {
	err := unix.Unmount(f.dir, unix.MNT_FORCE) // fails waiting requests even if it cannot unmount
	if err != nil {
		err = unix.Unmount(f.dir, unix.MNT_DETACH)
	}
	unix.Close(f.fd)
	<-f.ended
	return errors.Join(err, os.Remove(f.dir))
}
