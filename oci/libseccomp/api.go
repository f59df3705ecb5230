package seccomp

import "github.com/seccomp/libseccomp-golang/upstream"

// runc uses these of the binding, unchanged. Nothing else is here, so that a release of runc that
// uses more does not build until it has been checked.
type (
	ScmpAction    = seccomp.ScmpAction
	ScmpArch      = seccomp.ScmpArch
	ScmpCompareOp = seccomp.ScmpCompareOp
	ScmpCondition = seccomp.ScmpCondition
	ScmpSyscall   = seccomp.ScmpSyscall
	VersionError  = seccomp.VersionError
)

const (
	ActInvalid     = seccomp.ActInvalid
	ActKillThread  = seccomp.ActKillThread
	ActTrap        = seccomp.ActTrap
	ActNotify      = seccomp.ActNotify
	ActErrno       = seccomp.ActErrno
	ActTrace       = seccomp.ActTrace
	ActAllow       = seccomp.ActAllow
	ActLog         = seccomp.ActLog
	ActKillProcess = seccomp.ActKillProcess

	ArchNative      = seccomp.ArchNative
	ArchX86         = seccomp.ArchX86
	ArchAMD64       = seccomp.ArchAMD64
	ArchX32         = seccomp.ArchX32
	ArchARM         = seccomp.ArchARM
	ArchARM64       = seccomp.ArchARM64
	ArchMIPS        = seccomp.ArchMIPS
	ArchMIPS64      = seccomp.ArchMIPS64
	ArchMIPS64N32   = seccomp.ArchMIPS64N32
	ArchMIPSEL      = seccomp.ArchMIPSEL
	ArchMIPSEL64    = seccomp.ArchMIPSEL64
	ArchMIPSEL64N32 = seccomp.ArchMIPSEL64N32
	ArchPPC         = seccomp.ArchPPC
	ArchPPC64       = seccomp.ArchPPC64
	ArchPPC64LE     = seccomp.ArchPPC64LE
	ArchS390        = seccomp.ArchS390
	ArchS390X       = seccomp.ArchS390X
	ArchRISCV64     = seccomp.ArchRISCV64
	ArchLOONGARCH64 = seccomp.ArchLOONGARCH64

	CompareInvalid      = seccomp.CompareInvalid
	CompareNotEqual     = seccomp.CompareNotEqual
	CompareLess         = seccomp.CompareLess
	CompareLessOrEqual  = seccomp.CompareLessOrEqual
	CompareEqual        = seccomp.CompareEqual
	CompareGreaterEqual = seccomp.CompareGreaterEqual
	CompareGreater      = seccomp.CompareGreater
	CompareMaskedEqual  = seccomp.CompareMaskedEqual
)

// GetAPI returns the API level of libseccomp and the kernel.
func GetAPI() (uint, error) { return seccomp.GetAPI() }

// GetArchFromString returns the architecture of that name.
func GetArchFromString(name string) (ScmpArch, error) { return seccomp.GetArchFromString(name) }

// GetLibraryVersion returns the version of libseccomp.
func GetLibraryVersion() (major, minor, micro uint) { return seccomp.GetLibraryVersion() }

// GetNativeArch returns the kernel's own architecture.
func GetNativeArch() (ScmpArch, error) { return seccomp.GetNativeArch() }

// GetSyscallFromNameByArch returns the number of a system call on an architecture.
func GetSyscallFromNameByArch(name string, arch ScmpArch) (ScmpSyscall, error) {
	return seccomp.GetSyscallFromNameByArch(name, arch)
}

// MakeCondition returns a condition on an argument.
func MakeCondition(arg uint, op ScmpCompareOp, values ...uint64) (ScmpCondition, error) {
	return seccomp.MakeCondition(arg, op, values...)
}
