package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTrouble(t *testing.T) {
	const kernel = `Nov 23 07:00:00.1 node kernel: Linux version 6.1.0
Nov 23 07:00:00.2 node kernel: CPU: 1 PID: 542 Comm: testbin Not tainted 6.1.0-50-cloud-amd64 #1
Nov 23 07:00:00.3 node kernel: Memory cgroup out of memory: Killed process 5 (testbin)
Nov 23 07:00:00.4 node kernel: WARNING: CPU: 0 PID: 7 at fs/namespace.c:1 x+0x1
Nov 23 07:00:00.5 node kernel: watchdog: BUG: soft lockup - CPU#1 stuck for 23s!
Nov 23 07:00:00.6 node kernel: INFO: task crispd:12 blocked for more than 120 seconds.
Nov 23 07:00:00.7 node kernel: crisp-executor[12]: segfault at 0 ip 00 sp 00
Nov 23 07:00:00.8 node kernel: testbin[13]: segfault at 0 ip 00 sp 00
`
	const others = `Nov 23 07:00:01.1 node crispd[9]: {"level":"INFO","msg":"rpc done"}
Nov 23 07:00:01.2 node crispd[9]: {"level":"ERROR","msg":"rpc panicked","err":"index out of range"}
Nov 23 07:00:01.3 node crisp-executor[10]: panic: runtime error
Nov 23 07:00:01.4 node mount[11]: WARNING: nothing of ours
`
	want := []string{
		"Nov 23 07:00:00.4 node kernel: WARNING: CPU: 0 PID: 7 at fs/namespace.c:1 x+0x1",
		"Nov 23 07:00:00.6 node kernel: INFO: task crispd:12 blocked for more than 120 seconds.",
		"Nov 23 07:00:00.7 node kernel: crisp-executor[12]: segfault at 0 ip 00 sp 00",
		`Nov 23 07:00:01.2 node crispd[9]: {"level":"ERROR","msg":"rpc panicked","err":"index out of range"}`,
		"Nov 23 07:00:01.3 node crisp-executor[10]: panic: runtime error",
	}
	if diff := cmp.Diff(want, trouble(kernel, others)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
