package oomscore

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A program gets the given score, and its arguments, environment and exit code are
// unaffected.
func TestSet(t *testing.T) {
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	least, err := strconv.Atoi(strings.TrimSpace(string(own)))
	if err != nil {
		t.Fatal(err)
	}
	for score := max(least, 0); score <= 1000; score += 250 {
		cmd := exec.Command("/bin/sh", "-c", `cat /proc/self/oom_score_adj; echo "$0 $1 $KEY"; exit 3`, "zero", "one two")
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "KEY=value"}
		out, err := Set(cmd, score).Output()
		if want := strconv.Itoa(score) + "\nzero one two value\n"; string(out) != want {
			t.Errorf("score %d: output is %q, want %q", score, out, want)
		}
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 3 {
			t.Errorf("score %d: %v, want exit status 3", score, err)
		}
	}
}

// A process without the privilege to lower its score keeps the one it has; the executor's
// log has said so.
func TestSetLower(t *testing.T) {
	lower := Set(exec.Command("/bin/cat", "/proc/self/oom_score_adj"), -500)
	cmd := Set(exec.Command(lower.Path, lower.Args[1:]...), 300)
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.Output()
	if err != nil || string(out) != "300\n" {
		t.Errorf("score is %q, want 300: %v", out, err)
	}
}

func TestSetErrors(t *testing.T) {
	out, err := Set(exec.Command("/nosuch/program", "argument"), 0).CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 127 || string(out) != "/nosuch/program: No such file or directory\n" {
		t.Errorf("%v, %q", err, out)
	}
	out, err = Set(exec.Command("/bin/true"), 1001).CombinedOutput()
	if err == nil || string(out) != "/proc/self/oom_score_adj: Invalid argument\n" {
		t.Errorf("score 1001: %v, %q", err, out)
	}
	if err := Set(exec.Command("no-such-program"), 0).Run(); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("a missing program: %v", err)
	}
}
