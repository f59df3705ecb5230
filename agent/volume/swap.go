package volume

import (
	"bytes"
	"os"

	"golang.org/x/sys/unix"
)

// noSwap is the mount option of a tmpfs that is not swapped out (tmpfs(5); Linux 6.4).
const noSwap = "noswap"

// MaySwap reports whether volumes in memory, which may hold Secrets, can be written to a
// disk: the node has swap, and its kernel does not know the option noswap.
func MaySwap() bool {
	table, err := os.ReadFile("/proc/swaps")
	return err == nil && swaps(table) && !knows(noSwap)
}

// swaps reports whether /proc/swaps lists anything below its heading (proc_swaps(5)).
func swaps(table []byte) bool { return bytes.Count(table, []byte("\n")) > 1 }

// knows reports whether the kernel has this mount option of tmpfs (fsconfig(2)).
func knows(option string) bool {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(fs)
	return unix.FsconfigSetFlag(fs, option) == nil
}
