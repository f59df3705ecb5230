package fastinit

// #include "spawn.h"
import "C"

import (
	"os"
	"runtime"
	"sync"
	"syscall"
)

// spawning is held for each call of spawn, which has only one set of descriptors.
var spawning sync.Mutex

// reserve reserves the descriptors that spawn needs. Called early, it gets low ones: a fork also
// copies those below them.
func reserve() error {
	spawning.Lock()
	defer spawning.Unlock()
	return errnoOf(C.spawn_reserve())
}

// spawn forks a child of the calling thread with these files as its descriptors from 0 on, and
// returns its PID when it executes the program.
func spawn(files [C.SPAWN_FILES]*os.File, flags uintptr) (int, error) {
	var fds [C.SPAWN_FILES]C.int
	for i, f := range files {
		fds[i] = C.int(fdOf(f))
	}
	spawning.Lock()
	defer spawning.Unlock()
	pid := C.spawn(&fds[0], C.int(flags))
	runtime.KeepAlive(files)
	if pid < 0 {
		return 0, errnoOf(C.int(-pid))
	}
	return int(pid), nil
}

func errnoOf(n C.int) error {
	if n == 0 {
		return nil
	}
	return syscall.Errno(n)
}
