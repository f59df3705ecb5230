package main

import (
	"syscall"
	"unsafe"
)

// int80 is a system call as programs of 32-bit x86 make it; the kernel and its
// filters take it for one of theirs. Its error is negative.
func int80(number, a, b, c uint32) int32

// The numbers of arch/x86/entry/syscalls/syscall_32.tbl.
const (
	i386Socketcall = 102
	i386Socket     = 359
)

func init() {
	socketCalls["socket32"], socketCalls["socketcall32"] = socket32, socketcall32
}

func socket32(family uint64) syscall.Errno {
	return errnoOf(int80(i386Socket, uint32(family), syscall.SOCK_DGRAM, 0))
}

// socketcall32 passes the arguments where 32 bits reach: socketcall(2) takes a
// pointer to them.
func socketcall32(family uint64) syscall.Errno {
	const socket = 1 // SYS_SOCKET of linux/net.h
	low, err := syscall.Mmap(-1, 0, syscall.Getpagesize(), syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_32BIT)
	check(err)
	args := (*[3]uint32)(unsafe.Pointer(&low[0]))
	args[0], args[1], args[2] = uint32(family), syscall.SOCK_DGRAM, 0
	return errnoOf(int80(i386Socketcall, socket, uint32(uintptr(unsafe.Pointer(args))), 0))
}

func errnoOf(result int32) syscall.Errno {
	if result < 0 {
		return syscall.Errno(-result)
	}
	return 0
}
