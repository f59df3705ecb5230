package test

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// podsAreFound: a new agent finds what an older one has left, or what is left of it.
func podsAreFound(t *testing.T, l *lab) {
	l.run(t, "survivor", `
  containers:
  - name: app
    image: IMAGE
    args: [sleep, for-ever]
    readinessProbe: {exec: {command: [/testbin, await, /d/ready]}, periodSeconds: 10, timeoutSeconds: 5}
    volumeMounts: [{name: d, mountPath: /d}]
  - {name: once, image: IMAGE, args: [exit, "9"], restartPolicy: OnFailure}
  volumes: [{name: d, hostPath: {path: DIR}}]
`, func(t *testing.T, l *lab) {
		touch(t, filepath.Join(l.dir(), "ready"))
		l.until(func() bool { return l.status("app").Ready }, "it is ready")
		l.awaitRestarts("once", 1)
		was := l.pod().Status
		time.Sleep(11 * time.Second) // as old as a container must be to be found, not begun
		l.end(syscall.SIGKILL)
		l.start()
		for range 40 {
			if !l.status("app").Ready {
				t.Fatal("a ready container became not ready")
			}
			time.Sleep(50 * time.Millisecond)
		}
		now := l.pod().Status
		if !now.StartTime.Equal(was.StartTime) || l.status("once").RestartCount < 1 || l.status("app").RestartCount != 0 {
			t.Errorf("before %+v\nafter %+v", was, now)
		}
	})

	l.run(t, "orphan", `
  terminationGracePeriodSeconds: 20
  containers:
  - name: app
    image: IMAGE
    args: [catch, sleep, for-ever]
    lifecycle: {preStop: {exec: {command: [/testbin, write, /d/ends, "1"]}}}
    volumeMounts: [{name: d, mountPath: /d}]
  volumes: [{name: d, hostPath: {path: DIR}}]
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		uid := string(l.pod().UID)
		l.n.expects("files of an unknown pod stay.*" + uid)
		l.end(syscall.SIGKILL)
		l.remove()
		// Even what the agent knew of it is lost: labels and annotations remain.
		if err := os.RemoveAll(filepath.Join(l.n.dir, "agent", "pods", uid, "pod.json")); err != nil {
			t.Fatal(err)
		}
		l.start()
		l.until(func() bool { return len(l.sandboxes()) == 0 }, "the pod is gone")
		if l.read("ends") != "1" {
			t.Error("the hook before the end has not run")
		}
		removeCgroups("kubepods/besteffort/pod" + uid) // which the agent would sweep ten minutes later
	})

	l.run(t, "forgotten", `
  containers: [{name: app, image: IMAGE, args: [sleep, for-ever]}]
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		l.end(syscall.SIGKILL)
		// The runtime loses all it knew; the logs are there.
		for _, sb := range l.sandboxes() {
			if _, err := l.n.runtime().RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sb.Id}); err != nil {
				t.Fatal(err)
			}
		}
		l.start()
		l.until(func() bool {
			return slices.ContainsFunc(l.containers("app"), func(c *cri.Container) bool { return c.Metadata.Attempt == 1 })
		}, "the container's next attempt is 1")
		dir := filepath.Join(l.n.dir, "agent", "logs", "default_forgotten_"+string(l.pod().UID), "app")
		l.until(func() bool { logs, err := os.ReadDir(dir); return err == nil && len(logs) == 2 }, "both attempts have their log")
	})
}
