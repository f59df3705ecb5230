package filetrace_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/test/filetrace"
)

// The traced process calls stat ten times for each line that it reads, and prints the result.
func init() {
	if os.Getenv("CRISP_INJECTED") == "" {
		return
	}
	for s := bufio.NewScanner(os.Stdin); s.Scan(); {
		var errs []string
		for i := range 10 {
			if err := unix.Access("/", unix.F_OK); err != nil {
				panic(err) // must not happen: it is no call that is made to fail
			}
			if _, err := os.Stat("/"); err != nil {
				errs = append(errs, fmt.Sprintf("%d: %v", i, err))
			}
		}
		fmt.Println(strings.Join(errs, ", "))
	}
	os.Exit(0)
}

func TestInject(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "CRISP_INJECTED=1", "GODEBUG=updatemaxprocs=0") // else Go reads the cgroup's CPU limit each second
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	lines := bufio.NewReader(out)
	ask := func() { io.WriteString(in, "go\n") }
	answer := func() string {
		t.Helper()
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(line)
	}
	ask()
	answer() // so that its read of the next line has begun, which then is not counted
	time.Sleep(100 * time.Millisecond)
	i := filetrace.Attach(t, cmd.Process.Pid)

	i.Arm(0, unix.EIO)
	ask()
	if got := answer(); got != "" {
		t.Errorf("no call was to fail: %s", got)
	}
	if f, ok := i.Disarm(); !ok || f.Happened || f.Count < 10 {
		t.Errorf("calls were only counted, and Disarm returns %+v, %v", f, ok)
	}
	i.Arm(7, unix.EMFILE)
	ask()
	failed := answer()
	f, ok := i.Disarm()
	if !regexp.MustCompile(`^\d: stat /: too many open files$`).MatchString(failed) { // its read may take two calls
		t.Errorf("the answer with the seventh call failing is %q: %+v", failed, f)
	}
	if !ok || !f.Happened || !strings.Contains(f.What, "EMFILE") {
		t.Errorf("for the failed call Disarm returns %+v, %v", f, ok)
	}
	got := make(chan string)
	for wait := 200 * time.Millisecond; ; wait *= 2 {
		i.Arm(3, filetrace.Hang)
		ask()
		go func() {
			line, _ := lines.ReadString('\n')
			got <- line
		}()
		select {
		case line := <-got:
			t.Fatalf("a call should hang, and there is an answer: %q", line)
		case <-time.After(wait):
		}
		f, ok := i.Disarm()
		if line := <-got; line != "\n" {
			t.Errorf("after the hang the answer is %q", line)
		}
		if ok && !f.Happened && wait < time.Minute {
			continue // it is slow, and has not come so far
		}
		if !ok || !f.Happened || !strings.Contains(f.What, "hangs") {
			t.Errorf("for the hanging call Disarm returns %+v, %v", f, ok)
		}
		break
	}
	i.Release()
	ask()
	if got := answer(); got != "" {
		t.Errorf("after the release: %s", got)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
}

func TestInjectIntoWhatEnds(t *testing.T) {
	cmd := exec.Command("sleep", "3600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	i := filetrace.Attach(t, cmd.Process.Pid)
	i.Arm(1, unix.EIO)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process ended by itself")
	}
	if f, ok := i.Disarm(); ok {
		t.Errorf("for an ended process Disarm returns %+v", f)
	}
}

// The traced process executes itself for each line that it reads, and that process `true`; it
// prints how far it came.
func init() {
	switch os.Getenv("CRISP_FORKS") {
	case "first":
		for s := bufio.NewScanner(os.Stdin); s.Scan(); {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = []string{"CRISP_FORKS=second"}
			out, err := cmd.Output()
			fmt.Printf("first: %v; %s\n", err != nil, out)
		}
		os.Exit(0)
	case "second":
		fmt.Printf("second: %v", exec.Command("/bin/sh", "-c", "/bin/true & wait $!").Run() != nil)
		os.Exit(0)
	}
}

// Forks and executions fail in the process and in children that run its program, but not in what
// these run.
func TestInjectForks(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "CRISP_FORKS=first")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	lines := bufio.NewReader(out)
	answer := func() string {
		t.Helper()
		io.WriteString(in, "go\n")
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(line)
	}
	const works, first, second = "first: false; second: false", "first: true;", "first: false; second: true"
	answer()
	i := filetrace.AttachForks(t, cmd.Process.Pid)
	// The third is Go's look whether the kernel has pidfds, at the first fork of a program.
	for n, want := range []string{works, first, first, works, second, second, works} {
		i.Arm(n, unix.EAGAIN)
		if got := answer(); got != want {
			t.Errorf("with call %d failing: %q, want %q", n, got, want)
		}
		if f, ok := i.Disarm(); !ok || f.Happened != (0 < n && n < 6) {
			t.Errorf("call %d: %+v, %v", n, f, ok)
		}
	}
	i.ArmAll(1, unix.ENOMEM)
	for range 2 {
		if got := answer(); got != first {
			t.Errorf("with all failing: %q", got)
		}
	}
	if f, ok := i.Disarm(); !ok || !strings.Contains(f.What, "ENOMEM") {
		t.Errorf("%+v, %v", f, ok)
	}
	i.Release()
	if got := answer(); got != works {
		t.Errorf("after the release: %q", got)
	}
}
