package filetrace

import "golang.org/x/sys/unix"

// skipCall makes the kernel do nothing for the call at whose entry a thread is
// stopped.
func skipCall(id int) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(id, &r); err != nil {
		return err
	}
	r.Orig_rax = ^uint64(0)
	return unix.PtraceSetRegs(id, &r)
}

// setResult makes the call return n, a negative errno for an error.
func setResult(id, n int) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(id, &r); err != nil {
		return err
	}
	r.Rax = uint64(n)
	return unix.PtraceSetRegs(id, &r)
}
