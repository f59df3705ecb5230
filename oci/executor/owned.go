package executor

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Hooks that run outside of the container, and engines, are in the executor's own cgroup with
// everything that they start. One that hangs outlives a killed executor, and no cgroup of the
// container leads to it. So each has a variable in its environment that names its container, and
// its children inherit that.
//
// The variable is checked only when a container is removed that this executor has not started:
// a process that a hook intentionally leaves running belongs to the container, and lives as long.

// ownerEnv names that variable.
const ownerEnv = "_CRISP_CONTAINER"

// owner returns the variable for a container; it also names the instance of crisp, which may
// share its cgroup with another.
func owner(root, id string) string { return ownerEnv + "=" + filepath.Join(root, id) }

// ownHooks marks the hooks that run outside of the container. A hook without an environment gets
// ours.
func ownHooks(h *specs.Hooks, mark string) {
	if h == nil {
		return
	}
	for _, list := range [][]specs.Hook{h.Prestart, h.CreateRuntime, h.Poststart, h.Poststop} {
		for i := range list {
			if list[i].Env == nil {
				list[i].Env = os.Environ()
			}
			list[i].Env = append(slices.Clip(list[i].Env), mark)
		}
	}
}

// endOwned kills what an earlier executor's hooks and engines have left running for a container,
// and waits until it is gone. fault.Unavailable: some processes have not ended yet.
func endOwned(mark string) error {
	list := func() ([]int, error) { return owned(mark), nil }
	return endListed("processes of hooks", list, func() error { return signalEach(list, unix.SIGKILL) })
}

// owned returns the processes of our own cgroup that have mark in their environment. A process
// that has ended has none.
func owned(mark string) (pids []int) {
	for _, pid := range neighbours() {
		env, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if slices.Contains(strings.Split(string(env), "\x00"), mark) {
			pids = append(pids, pid)
		}
	}
	return pids
}
