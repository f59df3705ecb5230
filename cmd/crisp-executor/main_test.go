package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// mainEnv makes the test binary crisp-executor.
const mainEnv = "CRISP_EXECUTOR_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// An unknown argument must not start an executor: with a typing error in a flag
// ("-state DIR socket PATH") it would be one for another directory than intended.
func TestStrayArgument(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	cmd := exec.CommandContext(ctx, os.Args[0], "-state", dir, "socket", filepath.Join(dir, "s"))
	cmd.Env = append(os.Environ(), mainEnv+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), `unexpected argument "socket"`) {
		t.Errorf("%v: %s", err, out)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("it began all the same: %v", left)
	}
}
