package runtime

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// A process may run on every processor, however few its parent had, and however many there are:
// kernels are built for up to 8192, more than a CPUSet of package unix.
func TestEveryProcessor(t *testing.T) {
	if n := len(everyCPU) * 8; n < 8192 {
		t.Errorf("the set has %d processors", n)
	}
	var all, one, now unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for i := 0; one.Count() == 0; i++ {
		if all.IsSet(i) {
			one.Set(i)
		}
	}
	cmd := exec.Command("sleep", "3600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if err := unix.SchedSetaffinity(cmd.Process.Pid, &one); err != nil {
		t.Fatal(err)
	}
	resetAffinity(cmd.Process.Pid)
	if err := unix.SchedGetaffinity(cmd.Process.Pid, &now); err != nil || now.Count() < all.Count() {
		t.Errorf("the process has %d processors of %d, %v", now.Count(), all.Count(), err)
	}
}
