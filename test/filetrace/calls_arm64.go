package filetrace

import "golang.org/x/sys/unix"

// old enters the call that has another name than amd64's.
func old(enter func(nr uint64, name string, s sys)) {
	enter(unix.SYS_FSTATAT, "fstatat", looks(named(0, 1)))
}

var oldForks map[uint64]string
