package main

import "syscall"

// deep works with open directories, as a path is limited to 4096 bytes.
func deep(levels int, name string) {
	dir, err := syscall.Open(".", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	check(err)
	for range levels {
		check(syscall.Mkdirat(dir, name, 0o755))
		below, err := syscall.Openat(dir, name, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
		check(err)
		check(syscall.Close(dir))
		dir = below
	}
	check(syscall.Close(dir))
}
