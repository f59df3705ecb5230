package runtime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/test/testenv"
)

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
	init, err := proc.Open(sleeping(t).Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer init.Close()
	fakeIPTables(t, "case $(basename $0) in iptables-restore) echo no >&2; exit 1;; esac\n")
	err = UnlockNetwork(init, time.Minute)
	calls, _ := os.ReadFile(os.Getenv("CALLS"))
	want := "iptables -n -L CRIU\niptables-restore --noflush\nip6tables -n -L CRIU\nip6tables-restore --noflush\nnft delete table inet CRIU-" + strconv.Itoa(init.PID) + "\n"
	if err == nil || string(calls) != want {
		t.Errorf("error %v, calls:\n%s", err, calls)
	}
}

// An iptables that waits for its lock forever does not block the undo: the containers of a
// pod whose checkpoint failed keep running.
func TestUnlockIsBounded(t *testing.T) {
	testenv.NeedRoot(t, "it enters a network namespace")
	init, err := proc.Open(sleeping(t).Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer init.Close()
	fakeIPTables(t, "exec sleep 1000\n")
	if err := UnlockNetwork(init, 100*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// The network of an init that has ended is not opened: its PID may be another's by then.
func TestUnlockAfterTheEnd(t *testing.T) {
	testenv.NeedRoot(t, "it enters a network namespace")
	cmd := sleeping(t)
	ended, err := proc.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer ended.Close()
	cmd.Process.Kill()
	cmd.Wait()
	other := sleeping(t)
	fakeIPTables(t, "")
	for name, pid := range map[string]int{"nobody's": ended.PID, "another's": other.Process.Pid} {
		if err := UnlockNetwork(&proc.Process{PID: pid, FD: ended.FD}, time.Minute); err != nil {
			t.Errorf("with a PID that is %s: %v", name, err)
		}
		if calls, _ := os.ReadFile(os.Getenv("CALLS")); len(calls) > 0 {
			t.Errorf("with a PID that is %s, calls:\n%s", name, calls)
		}
	}
}
