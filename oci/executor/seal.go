package executor

import (
	"fmt"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

const (
	fSealExec = 0x20 // F_SEAL_EXEC, Linux 6.3
	mfdExec   = 0x10 // MFD_EXEC, Linux 6.3
	baseSeals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
)

// Sealed tells whether this process runs from a sealed memfd, which a container
// can neither change nor reach through /proc (CVE-2019-5736). libcontainer then
// executes it without making a copy first.
func Sealed() bool {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return false
	}
	defer f.Close()
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	return err == nil && seals&baseSeals == baseSeals
}

// Seal returns a sealed memfd with the program at path, close-on-exec.
func Seal(path string) (*os.File, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	const name, flags = "crisp-executor", unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|mfdExec)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err == unix.EACCES {
		return nil, fmt.Errorf("memfd_create: %w: the sysctl vm.memfd_noexec is 2, which forbids programs in memory; 1 does not", err)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := io.Copy(f, src); err != nil {
		f.Close()
		return nil, fmt.Errorf("copy %s: %w", path, err)
	}
	err = addSeals(f, baseSeals|fSealExec)
	if err == unix.EINVAL {
		err = addSeals(f, baseSeals)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("seal %s: %w", path, err)
	}
	return f, nil
}

// sealTries is how often the kernel is asked for the seals. While anybody, such as
// its own compaction of memory, has hold of a page of the file, it waits for 150 ms
// and answers EBUSY (mm/memfd.c, memfd_wait_for_pins).
const sealTries = 30

func addSeals(f *os.File, seals int) (err error) {
	for range sealTries {
		if _, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != unix.EBUSY {
			break
		}
	}
	return err
}

// Execute replaces this process by the program in a memfd. It returns only if it
// cannot.
func Execute(memfd *os.File, args, env []string) error {
	err := unix.Exec(fmt.Sprintf("/proc/self/fd/%d", memfd.Fd()), args, env)
	runtime.KeepAlive(memfd) // a garbage collection would close it before it is executed
	return err
}
