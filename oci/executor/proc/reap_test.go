package proc

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A child that cannot be reaped at first is reaped all the same, and one that never can is given up.
func TestReapTriesAgain(t *testing.T) {
	for _, c := range []struct {
		answers []error // the last one repeats
		calls   int
	}{
		{[]error{nil}, 1},
		{[]error{unix.EINTR, unix.EINTR, nil}, 3},
		{[]error{unix.EIO, unix.ENOMEM, nil}, 3},
		{[]error{unix.EIO, unix.ECHILD}, 2},
		{[]error{unix.EIO}, reapTries},
	} {
		calls := 0
		reap(func() error {
			calls++
			return c.answers[min(calls, len(c.answers))-1]
		})
		if calls != c.calls {
			t.Errorf("%v: %d calls, want %d", c.answers, calls, c.calls)
		}
	}
}

// The code of a process that cannot be waited for is read from /proc while it is a zombie.
func TestCodeWithoutWait(t *testing.T) {
	// The shell becomes a program that does not reap, and only then its child ends.
	parent := exec.Command("sh", "-c", "sh -c 'read line; exit 42' <&3 & echo $!; exec sleep 60")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	parent.ExtraFiles = []*os.File{r}
	out, err := parent.StdoutPipe()
	if err == nil {
		err = parent.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Wait()
	defer parent.Process.Kill()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	p, err := Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	eventually(t, func() bool {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", parent.Process.Pid))
		return string(comm) == "sleep\n"
	})
	if _, err := w.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { _, dead := p.zombieStatus(); return dead })
	if code, err := p.Code(); code != 42 || err != nil { // Open takes it for our child
		t.Errorf("code %d (err %v), want 42", code, err)
	}
}
