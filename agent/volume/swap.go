package volume

import (
	"bytes"
	"os"

	"golang.org/x/sys/unix"
)

// noSwap is the option of a tmpfs whose pages stay in memory (tmpfs(5); Linux 6.4).
const noSwap = "noswap"

// MaySwap reports whether volumes in memory, which may hold Secrets, can be written to a
// disk: the node has swap, and its kernel does not know the option noswap.
func MaySwap() bool {
	table, err := os.ReadFile("/proc/swaps")
	return err == nil && swaps(table) && !knows(noSwap)
}

// swaps reports whether /proc/swaps lists anything below its heading (proc_swaps(5)).
func swaps(table []byte) bool { return bytes.Count(table, []byte("\n")) > 1 }

// knows reports whether the kernel knows this option of a tmpfs (fsconfig(2)).
func knows(option string) bool {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(fs)
	return unix.FsconfigSetFlag(fs, option) == nil
}
