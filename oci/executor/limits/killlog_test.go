package limits

import (
	"testing"
	"time"
)

// Only the kernel's own record of a victim counts: not the process that asked for the
// memory, not the cgroup whose limit was reached, not what a program has written to the
// log, and not an earlier process with the same PID.
func TestKilledByRecord(t *testing.T) {
	v := victim{group: "crisp-a.scope", pid: 77, since: 83 * time.Millisecond}
	const pod = "/kubepods.slice/kubepods-pod1.slice/"
	oom := func(limit, victim string) string {
		return "6,844,83725,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=crisp-a.scope,mems_allowed=0,oom_memcg=" + limit +
			",task_memcg=" + victim + ",task=a,b,pid=44,uid=0\n SUBSYSTEM=x\n"
	}
	for _, c := range []struct {
		record string
		want   bool
	}{
		{oom(pod+"crisp-a.scope", pod+"crisp-a.scope"), true},
		{oom(pod+"crisp-a.scope", pod+"crisp-a.scope/init.scope"), true},
		{oom(pod, pod+"crisp-a.scope"), true},
		{oom(pod, pod+"crisp-b.scope"), false},
		{oom(pod, pod+"crisp-a.scope2"), false},
		{oom(pod, "/"), false},
		{"3,845,83731,-;Memory cgroup out of memory: Killed process 77 (a) total-vm:1kB, anon-rss:1kB, UID:0\n", true},
		{"3,845,83731,-;Out of memory: Killed process 77 (a) total-vm:1kB\n", true},
		{"3,845,83731,-;Memory cgroup out of memory: Killed process 777 (77 ) total-vm:1kB\n", false},
		{"3,845,82731,-;Out of memory: Killed process 77 (a) total-vm:1kB\n", false}, // an earlier process with the same PID
		{"3,845;Out of memory: Killed process 77 (a) total-vm:1kB\n", false},
		{"11,845,83731,-;Out of memory: Killed process 77 (a) total-vm:1kB\n", false},
		{"11" + oom(pod, pod+"crisp-a.scope")[1:], false},
		{"6,846,83731,-;oom_reaper: reaped process 77 (a), now anon-rss:0kB\n", false},
		{"nothing", false},
		{"", false},
	} {
		if got := v.killed(c.record); got != c.want {
			t.Errorf("%v for %q", got, c.record)
		}
	}
	if (victim{group: "g"}).killed("3,1,1,-;Out of memory: Killed process 0 (a)\n") {
		t.Error("a record is taken for one of process 0")
	}
}
