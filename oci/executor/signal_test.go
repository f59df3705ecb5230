package executor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/test/testenv"
)

// sleeping starts a process that ends with the test.
func sleeping(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

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

// fakeIPTables puts the programs that unlock calls into PATH, as scripts that log their
// call and run script.
func fakeIPTables(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"iptables", "ip6tables", "iptables-restore", "ip6tables-restore", "nft"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho $(basename $0) $* >> "+dir+"/calls\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("CALLS", filepath.Join(dir, "calls"))
}

// Rules that cannot be removed in one address family do not keep those of the other.
func TestUnlockGoesOnAfterWhatFails(t *testing.T) {
	testenv.NeedRoot(t, "it enters a network namespace")
	init, err := newChild(sleeping(t).Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer init.close()
	fakeIPTables(t, "case $(basename $0) in iptables-restore) echo no >&2; exit 1;; esac\n")
	err = unlock(init, time.Minute)
	calls, _ := os.ReadFile(os.Getenv("CALLS"))
	want := "iptables -n -L CRIU\niptables-restore --noflush\nip6tables -n -L CRIU\nip6tables-restore --noflush\nnft delete table inet CRIU-" + strconv.Itoa(init.pid) + "\n"
	if err == nil || string(calls) != want {
		t.Errorf("error %v, calls:\n%s", err, calls)
	}
}

// An iptables that waits for its lock forever does not block the undo: the containers of a
// pod whose checkpoint failed keep running.
func TestUnlockIsBounded(t *testing.T) {
	testenv.NeedRoot(t, "it enters a network namespace")
	init, err := newChild(sleeping(t).Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer init.close()
	fakeIPTables(t, "exec sleep 1000\n")
	if err := unlock(init, 100*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// The network of an init that has ended is not opened: its PID may be another's by then.
func TestUnlockAfterTheEnd(t *testing.T) {
	testenv.NeedRoot(t, "it enters a network namespace")
	cmd := sleeping(t)
	ended, err := newChild(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer ended.close()
	cmd.Process.Kill()
	cmd.Wait()
	other := sleeping(t)
	fakeIPTables(t, "")
	for name, pid := range map[string]int{"nobody's": ended.pid, "another's": other.Process.Pid} {
		if err := unlock(&child{pid: pid, pidfd: ended.pidfd}, time.Minute); err != nil {
			t.Errorf("with a PID that is %s: %v", name, err)
		}
		if calls, _ := os.ReadFile(os.Getenv("CALLS")); len(calls) > 0 {
			t.Errorf("with a PID that is %s, calls:\n%s", name, calls)
		}
	}
}
