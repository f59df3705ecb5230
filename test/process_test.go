package test

import (
	"testing"

	"github.com/crisp-cri/crisp/test/testenv"
)

// pidOf returns the PID of the process whose first arguments are testbin and verb.
func pidOf(t *testing.T, verb string) int {
	t.Helper()
	pids := testenv.Processes(func(args []string) bool { return len(args) > 1 && args[0] == "/testbin" && args[1] == verb })
	if len(pids) == 0 {
		t.Fatalf("no process of testbin %s", verb)
	}
	return pids[0]
}
