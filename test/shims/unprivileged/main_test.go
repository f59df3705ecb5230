package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/test/testenv"
)

// TestMain makes a copy of the test binary the program itself.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "shim" {
		main()
	}
	os.Exit(m.Run())
}

// A shim that lowers an oom_score_adj can start. Its other files, arguments, output and exit code are
// its own, and what it leaves behind is not traced.
func TestUnprivileged(t *testing.T) {
	testenv.NeedRoot(t, "another user cannot lower it either way")
	testenv.Need(t, "ptrace")
	dir := t.TempDir()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	const shim = `#!/bin/sh
echo -999 > /proc/$$/oom_score_adj || exit 9
echo "$@" > args
grep TracerPid /proc/$$/status
sh -c 'sleep 0.2; grep TracerPid /proc/$$/status >child' >/dev/null 2>&1 &
exit 3
`
	for path, text := range map[string]string{"shim": shim, "unprivileged/shim": string(self)} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "unprivileged/shim"), "-id", "x", "start")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 3 {
		t.Fatalf("%v: %s", err, out)
	}
	if traced := !strings.HasSuffix(strings.TrimSpace(string(out)), "\t0"); traced == mayLowerScore() {
		t.Errorf("it says %q, with the capability %v", out, mayLowerScore())
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		child, err := os.ReadFile(filepath.Join(dir, "child"))
		if string(child) == "TracerPid:\t0\n" {
			break
		}
		if len(child) > 0 || time.Now().After(deadline) {
			t.Fatalf("what it leaves behind is traced: %q, %v", child, err)
		}
	}
	if args, err := os.ReadFile(filepath.Join(dir, "args")); string(args) != "-id x start\n" {
		t.Errorf("its arguments are %q, %v", args, err)
	}
}
