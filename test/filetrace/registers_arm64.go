package filetrace

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// skipCall makes the kernel do nothing for the call at whose entry a thread is
// stopped.
func skipCall(id int) error {
	const systemCall = 0x404 // NT_ARM_SYSTEM_CALL of linux/elf.h
	none := int32(-1)
	v := unix.Iovec{Base: (*byte)(unsafe.Pointer(&none))}
	v.SetLen(4)
	return ptrace(unix.PTRACE_SETREGSET, id, systemCall, uintptr(unsafe.Pointer(&v)))
}

// setResult makes the call return n, a negative errno for an error.
func setResult(id, n int) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(id, &r); err != nil {
		return err
	}
	r.Regs[0] = uint64(n)
	return unix.PtraceSetRegs(id, &r)
}
