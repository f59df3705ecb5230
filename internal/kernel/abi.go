package kernel

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// x32Bit marks a system call of the x32 ABI (asm/unistd.h).
const x32Bit = 0x40000000

// probeABIs probes which other ABIs an amd64 kernel supports. It calls getpid(2) by the x32 ABI,
// which most kernels are built without; 32-bit programs run if a certain sysctl exists
// (Documentation/admin-guide/sysctl/abi).
func (f *Features) probeABIs() {
	if runtime.GOARCH != "amd64" {
		return
	}
	_, _, errno := unix.RawSyscall(x32Bit|unix.SYS_GETPID, 0, 0, 0)
	f.X32 = errno == 0
	f.IA32 = exists("/proc/sys/abi/vsyscall32")
}
