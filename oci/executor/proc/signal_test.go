package proc

import (
	"errors"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A PID whose process ended between the list and the signal may have been reused, and must not be
// signalled. Neither may 0, which would be our own process group: it stands for a process of a PID
// namespace that we cannot see.
func TestSignalMissesWhoIsNoMember(t *testing.T) {
	member, other := sleeping(t), sleeping(t)
	lists := [][]int{{0, other.Process.Pid, member.Process.Pid, 1 << 22}, {0, member.Process.Pid}}
	err := signalEach(func() ([]int, error) {
		now := lists[0]
		if len(lists) > 1 {
			lists = lists[1:]
		}
		return now, nil
	}, unix.SIGKILL)
	if err != nil {
		t.Error(err)
	}
	member.Wait() // or the test hangs
	time.Sleep(blocked)
	if isZombie(other.Process.Pid) {
		t.Error("a process that is no member was killed")
	}
}

// A process list that cannot be read a second time is an error, not a success.
func TestSignalTellsWhatItCouldNotSee(t *testing.T) {
	cmd := sleeping(t)
	calls := 0
	err := signalEach(func() ([]int, error) {
		if calls++; calls > 1 {
			return nil, unix.EIO
		}
		return []int{cmd.Process.Pid}, nil
	}, unix.SIGTERM)
	if !errors.Is(err, unix.EIO) {
		t.Errorf("got %v", err)
	}
}

// signalEach reaches more processes than it signals in one batch.
func TestSignalReachesAll(t *testing.T) {
	var all []*exec.Cmd
	var pids []int
	for range signalBatch + 10 {
		cmd := sleeping(t)
		all, pids = append(all, cmd), append(pids, cmd.Process.Pid)
	}
	if err := signalEach(func() ([]int, error) { return pids, nil }, unix.SIGTERM); err != nil {
		t.Error(err)
	}
	for _, cmd := range all {
		cmd.Wait() // or the test hangs
	}
}
