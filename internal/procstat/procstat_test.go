package procstat

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A container chooses the names of its processes, so they may contain anything.
func TestParse(t *testing.T) {
	const rest = " 42 42 0 -1 4194564 1 0 0 0 0 0 0 0 20 0 1 0 123456 1 2 3 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 "
	got, err := Parse([]byte("42 (a) R (b) S 1" + rest + "256\n"))
	want := Stat{Name: "a) R (b", State: 'S', Parent: 1, Session: 42, Flags: 0x400104, Threads: 1, StartTime: 123456, Exit: 256}
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if !got.Exiting() || got.Ended() || got.Forked() || got.Exit.ExitStatus() != 1 {
		t.Errorf("%+v: exiting %t, ended %t", got, got.Exiting(), got.Ended())
	}
	for _, bad := range []string{"", "42 (x) S 1", "no parenthesis at all", "42 x) S 1" + rest + "256", "42 x S 1" + rest + "256", "42 (x) S one" + rest + "256", "42 (x) S 1" + rest + "many"} {
		if s, err := Parse([]byte(bad)); err == nil {
			t.Errorf("took %q for %+v", bad, s)
		}
	}
}

func TestRead(t *testing.T) {
	self, err := Read(os.Getpid())
	if err != nil || self.Parent != os.Getppid() || self.StartTime == 0 || self.Ended() || self.Exiting() || self.Forked() {
		t.Fatalf("got %+v of ourselves, %v", self, err)
	}
	cmd := exec.Command("sh", "-c", "exit 3")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	// It is a zombie until it is reaped.
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	child, err := Read(cmd.Process.Pid)
	if err != nil || !child.Ended() || child.Parent != os.Getpid() || child.StartTime < self.StartTime {
		t.Errorf("got %+v of a zombie, %v", child, err)
	}
	if os.Geteuid() == 0 && child.Exit.ExitStatus() != 3 { // otherwise only a tracer may read it
		t.Errorf("the zombie's exit status is %d, want 3", child.Exit.ExitStatus())
	}
	if s, err := Read(1 << 30); err == nil {
		t.Errorf("got %+v for a missing process", s)
	}
}

// A process lives until its last thread has exited. A runtime that took it for ended would leave it
// behind.
func TestFirstThreadExits(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), exitFirst+"=yes")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		s, err := Read(cmd.Process.Pid)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("got %+v, %v", s, err)
		}
		if s.State == 'Z' {
			if s.Ended() || !s.Exiting() {
				t.Errorf("got %+v of a process whose other threads live", s)
			}
			return
		}
	}
}

const exitFirst = "PROCSTAT_EXIT_FIRST_THREAD"

// init runs on the first thread, which this exits in the test's child.
func init() {
	if os.Getenv(exitFirst) != "" {
		go func() {
			time.Sleep(time.Minute)
			os.Exit(0)
		}()
		unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
	}
}

func TestPIDs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cgroup.procs")
	if err := os.WriteFile(file, []byte("12\n0\n3456\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := PIDs(file); !slices.Equal(got, []int{12, 3456}) {
		t.Errorf("processes %v", got)
	}
	if got := PIDs(file + ".gone"); len(got) > 0 {
		t.Errorf("processes %v of a list that does not exist", got)
	}
}
