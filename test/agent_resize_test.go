package test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// pending returns the condition of a pending resize as "reason: message"; "" if there is
// none.
func (l *lab) pending() string {
	l.t.Helper()
	if pod := l.pod(); pod != nil {
		for _, c := range pod.Status.Conditions {
			if c.Type == v1.PodResizePending && c.Status == v1.ConditionTrue {
				return c.Reason + ": " + c.Message
			}
		}
	}
	return ""
}

// A resize to more than the node has is rejected for good, and the status says so; one to more than
// is free waits. The container keeps its resources meanwhile, also under another agent.
func TestAgentResizePending(t *testing.T) {
	l := startCgroupLab(t)
	web, other := l.pick(t, "web"), l.pick(t, "other")
	l.until(func() bool { _, code := l.agentProcess.crisp("", "get", "nodes"); return code == 0 }, "the agent serves")
	apply := func(name, cpu string) {
		t.Helper()
		l.says(0, name+" created", "apply", "-f", l.file(name+".yaml", `apiVersion: v1
kind: Pod
metadata: {name: `+name+`}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: IMAGE, args: [sleep, for-ever], resources: {requests: {cpu: `+cpu+`, memory: 8Mi}}}]
`))
	}
	apply("web", "100m")
	web.awaitReady()
	id := web.status("app").ContainerID
	resize := func(cpu, memory string) {
		t.Helper()
		web.patch(t, "web/resize", `{"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "`+cpu+`", "memory": "`+memory+`"}}}]}}`)
	}
	is := func(want string) {
		t.Helper()
		web.until(func() bool { return strings.HasPrefix(web.pending(), want) }, "the resize is "+want)
	}
	keeps := func(cpu string) {
		t.Helper()
		s := web.status("app")
		if s.Resources == nil || s.Resources.Requests.Cpu().String() != cpu || s.ContainerID != id || s.RestartCount != 0 {
			t.Errorf("meanwhile the container's status is %+v", s)
		}
	}
	all := runtime.NumCPU() * 1000 // the capacity that `status` shows; nothing is reserved

	resize("4000", "8Mi")
	is(fmt.Sprintf("Infeasible: Node didn't have enough capacity: cpu, requested: 4000000, capacity: %d", all))
	resize("4000", "8Pi")
	is("Infeasible: Node didn't have enough capacity: memory, requested: 9007199254740992, capacity: ")
	keeps("100m")
	fits := func(name string) { // the unallocated request of web takes no room
		t.Helper()
		apply(name, "100m")
		l.pick(t, name).awaitReady()
		l.says(0, "deleted", "delete", "pod/"+name)
	}
	fits("beside")
	l.restart()
	l.until(func() bool { _, code := l.agentProcess.crisp("", "get", "nodes"); return code == 0 }, "another agent serves")
	fits("later")
	resize("100m", "8Mi")
	web.until(func() bool { return web.pending() == "" }, "nothing is pending")

	apply("other", fmt.Sprintf("%dm", all-200))
	other.awaitReady()
	resize("300m", "8Mi")
	is(fmt.Sprintf("Deferred: Node didn't have enough resource: cpu, requested: 300, used: %d, capacity: %d", all-200, all))
	keeps("100m")
	l.says(0, "deleted", "delete", "pod/other")
	web.until(func() bool {
		return web.pending() == "" && web.status("app").Resources.Requests.Cpu().String() == "300m"
	}, "it has what it asked for")
	keeps("300m")
	l.says(0, "deleted", "delete", "pod/web")
	web.until(func() bool { return web.pod() == nil }, "it is gone")
}
