package proc

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/executor/gate"
)

// A child that the executor starts itself, and waits for, belongs to another thread than
// the orphans. On a stalled machine its zombie is as old as theirs, and would be reaped
// with its exit code.
func TestZombieOfAnotherThreadIsLeftAlone(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	over := make(chan struct{})
	defer close(over)
	cmd := exec.Command("sh", "-c", "exit 7")
	started := make(chan error, 1)
	go onThread(func() { started <- cmd.Start(); <-over })
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return isZombie(cmd.Process.Pid) })
	out, err := exec.Command("sh", "-c", "sleep 0 >/dev/null & echo $!").Output()
	if err != nil {
		t.Fatal(err)
	}
	orphan, err := strconv.Atoi(string(bytes.TrimSpace(out)))
	if err != nil {
		t.Fatal(err)
	}
	quit := make(chan struct{})
	reaped := make(chan struct{})
	go func() { NewReaper(new(gate.Gate)).Loop(quit); close(reaped) }()
	eventually(t, func() bool { return unix.Kill(orphan, 0) == unix.ESRCH })
	close(quit)
	<-reaped
	if cmd.Wait(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("state of the child that is waited for: %v", cmd.ProcessState)
	}
}

// onThread calls f on a thread that is not the main one.
func onThread(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Gettid() != os.Getpid() {
		f()
		return
	}
	done := make(chan struct{})
	go func() { onThread(f); close(done) }()
	<-done
}
