package kernel

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// x32Bit marks a system call of the x32 ABI (asm/unistd.h).
const x32Bit = 0x40000000

// probeABIs asks an amd64 kernel what else it runs. getpid(2) is tried by the x32
// ABI, which most kernels are built without; whether 32-bit programs run shows in a
// sysctl that exists only then (Documentation/admin-guide/sysctl/abi).
func (f *Features) probeABIs() {
	if runtime.GOARCH != "amd64" {
		return
	}
	_, _, errno := unix.RawSyscall(x32Bit|unix.SYS_GETPID, 0, 0, 0)
	f.X32 = errno == 0
	f.IA32 = exists("/proc/sys/abi/vsyscall32")
}
