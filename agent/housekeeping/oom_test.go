package housekeeping

import "testing"

func TestOOMEvent(t *testing.T) {
	for line, want := range map[string]string{
		"4,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/user.slice,task=big hog,pid=4711,uid=0\n": "System OOM encountered, victim process: big hog, pid: 4711",
		"4,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/kubepods,task_memcg=/kubepods,task=a,pid=1,uid=0\n":                          "",
		"6,1,2,-;eth0: link up\n": "",
	} {
		if got := oomEvent(line); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}
