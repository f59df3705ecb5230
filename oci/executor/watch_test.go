package executor

import (
	"testing"
	"time"

	"github.com/crisp-cri/crisp/oci/executor/limits"
)

// A container that has lost a process to the OOM killer is not out of memory for good: how it ends
// later, or because it is asked to, has other reasons.
func TestWhatTheOOMKillerExplains(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name string
		code int32
		kill time.Duration // before the end; 0 = under an earlier executor
		sent uint64
		want bool
	}{
		{"killed", 137, time.Millisecond, 0, true},
		{"killed, and a child long before", 137, time.Hour, 0, true},
		{"killed, and a child under an earlier executor", 137, 0, 0, true},
		{"killed when asked to", 137, time.Millisecond, 1 << 8, false},
		{"killed while it ended", 137, time.Millisecond, 1 << 14, true},
		{"failed for its child", 1, time.Second, 0, true},
		{"failed later", 1, time.Minute, 0, false},
		{"failed, and a child under an earlier executor", 1, 0, 0, false},
		{"ended when asked to", 143, time.Second, 1 << 14, false},
		{"ended as if asked to", 143, time.Second, 0, true},
		{"completed", 0, time.Second, 0, false},
		{"an exit code above all signals", 255, time.Second, 1<<64 - 1, true},
	} {
		x := &container{oom: &limits.OOMCounter{}}
		if x.oom.Learn(1, now.Add(-c.kill)); c.kill == 0 {
			x.oom.Resume(1)
		}
		x.sent.Store(c.sent)
		if got := x.outOfMemory(c.code, now); got != c.want {
			t.Errorf("%s: out of memory is %t", c.name, got)
		}
	}
}
