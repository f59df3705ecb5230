// Package seal copies the executor's program to where nothing can change it.
package seal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

const baseSeals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// Name is the program's name where it runs from: of a memfd, or of the only file in a file
// system.
const Name = "crisp-executor"

// Sealed reports whether this process runs from a copy made by Seal, which a container can
// neither change nor reach through /proc (CVE-2019-5736). libcontainer then executes it without
// making a copy first, if it is a memfd.
func Sealed() bool {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return false
	}
	defer f.Close()
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	return err == nil && seals&baseSeals == baseSeals || isReadOnlyCopy(f)
}

// Copy returns an immutable copy of the program at path, close-on-exec: a sealed memfd, or an
// equivalent where the system forbids programs in those.
func Copy(path string) (*os.File, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	f, err := sealedMemfd(src)
	if errors.Is(err, errNoPrograms) {
		var cerr error
		if f, cerr = readOnlyCopy(src); cerr != nil {
			return nil, fmt.Errorf("%w, and: %w", err, cerr)
		}
		return f, nil
	}
	return f, err
}

// errNoPrograms is the error of memfd_create(2) if vm.memfd_noexec is 2 (Linux 6.3).
var errNoPrograms = errors.New("memfd_create: the sysctl vm.memfd_noexec is 2, which forbids programs in memory")

func sealedMemfd(src *os.File) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(Name, flags|unix.MFD_EXEC) // since Linux 6.3
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate(Name, flags)
	}
	if err == unix.EACCES {
		return nil, errNoPrograms
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), Name)
	if _, err := io.Copy(f, src); err != nil {
		f.Close()
		return nil, fmt.Errorf("copy %s: %w", src.Name(), err)
	}
	err = addSeals(f, baseSeals|unix.F_SEAL_EXEC) // since Linux 6.3
	if err == unix.EINVAL {
		err = addSeals(f, baseSeals)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("seal %s: %w", src.Name(), err)
	}
	return f, nil
}

// readOnlyCopy returns a copy of src in its own file system, also in memory, which is mounted
// nowhere and read-only: not just its mount, which the holder of the file could bypass, but the
// whole file system. libcontainer accepts only memfds as sealed, and copies this copy for each
// start.
func readOnlyCopy(src *os.File) (*os.File, error) {
	fsys, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fsys)
	if err := unix.FsconfigCreate(fsys); err != nil {
		return nil, os.NewSyscallError("fsconfig", err)
	}
	root, err := unix.Fsmount(fsys, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	defer unix.Close(root)
	open := func(flags int) (*os.File, error) {
		fd, err := unix.Openat(root, Name, flags|unix.O_CLOEXEC, 0o500)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: Name, Err: err}
		}
		return os.NewFile(uintptr(fd), Name), nil
	}
	w, err := open(unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL)
	if err != nil {
		return nil, err
	}
	if _, err = src.Seek(0, io.SeekStart); err == nil {
		_, err = io.Copy(w, src)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, fmt.Errorf("copy %s: %w", src.Name(), err)
	}
	if err = unix.FsconfigSetFlag(fsys, "ro"); err == nil {
		err = unix.FsconfigReconfigure(fsys)
	}
	if err != nil {
		return nil, fmt.Errorf("make the copy of %s read-only: %w", src.Name(), err)
	}
	f, err := open(unix.O_RDONLY)
	if err == nil && !isReadOnlyCopy(f) { // it would re-execute itself for ever
		f.Close()
		return nil, fmt.Errorf("the copy of %s cannot be told from others", src.Name())
	}
	return f, err
}

// isReadOnlyCopy reports whether f was made by readOnlyCopy.
func isReadOnlyCopy(f *os.File) bool {
	var st unix.Statfs_t
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	return err == nil && name == "/"+Name && unix.Fstatfs(int(f.Fd()), &st) == nil &&
		st.Type == unix.TMPFS_MAGIC && st.Flags&unix.ST_RDONLY != 0
}

// sealTries is how often to try setting the seals. While anything, such as the kernel's memory
// compaction, holds a page of the file, the kernel waits for 150 ms and returns EBUSY (mm/memfd.c,
// memfd_wait_for_pins).
const sealTries = 30

func addSeals(f *os.File, seals int) (err error) {
	for range sealTries {
		if _, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != unix.EBUSY {
			break
		}
	}
	return err
}

// Execute replaces this process by a program that Seal returned. It returns only on failure.
func Execute(program *os.File, args, env []string) error {
	err := unix.Exec(fmt.Sprintf("/proc/self/fd/%d", program.Fd()), args, env)
	runtime.KeepAlive(program) // the garbage collector would close it before it is executed
	return err
}
