package test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/opencontainers/cgroups"
)

// The overhead of a RuntimeClass is part of the pod: of its cgroup, also after a resize, and of
// what the node must have free to admit it. What a scheduler would do with a class is said to be
// ignored.
func TestAgentOverhead(t *testing.T) {
	l := startCgroupLab(t)
	web, large := l.pick(t, "web"), l.pick(t, "large")
	l.until(func() bool { _, code := l.agentProcess.crisp("", "get", "nodes"); return code == 0 }, "the agent serves")
	class := l.file("class.yaml", `apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: heavy}
handler: crisp
overhead: {podFixed: {cpu: 250m, memory: 64Mi}}
scheduling: {nodeSelector: {sandboxes: "yes"}}
`)
	l.says(0, `class.yaml:6: scheduling: is ignored: pods are not scheduled, they run on this node`, "apply", "-f", class)
	pod := func(name, cpu string) {
		t.Helper()
		l.says(0, name+" created", "apply", "-f", l.file(name+".yaml", `apiVersion: v1
kind: Pod
metadata: {name: `+name+`}
spec:
  runtimeClassName: heavy
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: IMAGE, args: [sleep, for-ever], resources: {requests: {cpu: `+cpu+`}, limits: {cpu: `+cpu+`, memory: 64Mi}}}]
`))
	}
	pod("web", "150m")
	web.awaitReady()
	path := "kubepods/pod" + string(web.pod().UID)
	has := func(shares uint64, quota, memory string) {
		t.Helper()
		web.until(func() bool {
			if cgroups.IsCgroup2UnifiedMode() {
				return l.cgroupFile(path, "cpu.weight") == fmt.Sprint(cgroups.ConvertCPUSharesToCgroupV2Value(shares)) &&
					l.cgroupFile(path, "cpu.max") == quota+" 100000" && l.cgroupFile(path, "memory.max") == memory
			}
			return l.cgroupFile(path, "cpu.shares") == fmt.Sprint(shares) && l.cgroupFile(path, "cpu.cfs_quota_us") == quota &&
				l.cgroupFile(path, "memory.limit_in_bytes") == memory
		}, fmt.Sprintf("the pod's cgroup has %d shares, a quota of %s and %s bytes", shares, quota, memory))
	}
	has(409, "40000", "134217728") // 400m and 128Mi
	web.patch(t, "web/resize", `{"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "250m", "memory": "96Mi"}, "limits": {"cpu": "250m", "memory": "96Mi"}}}]}}`)
	has(512, "50000", "167772160") // 500m and 160Mi

	// Without overhead it would just fit.
	pod("large", fmt.Sprintf("%dm", runtime.NumCPU()*1000-600))
	large.awaitEvent("OutOfcpu")
	l.says(0, "deleted", "delete", "pod/web", "pod/large")
	web.until(func() bool { return web.pod() == nil && large.pod() == nil }, "both are gone")
}
