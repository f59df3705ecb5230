package main

import (
	"fmt"
	"strconv"
	"syscall"
)

// socketCalls are the ways to make a socket that this architecture has, by verb.
var socketCalls = map[string]func(family uint64) syscall.Errno{
	"socket": func(family uint64) syscall.Errno {
		_, _, errno := syscall.RawSyscall(syscall.SYS_SOCKET, uintptr(family), syscall.SOCK_DGRAM, 0)
		return errno
	},
}

// socket prints "ok" or the error of making a socket.
func socket(verb, family string) {
	call, ok := socketCalls[verb]
	if !ok {
		fatal("this architecture has no " + verb)
	}
	n, err := strconv.ParseUint(family, 0, 64)
	check(err)
	if errno := call(n); errno != 0 {
		fmt.Println(errno.Error())
		return
	}
	fmt.Println("ok")
}
