package test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// A container that its rules say so of has the whole pod begin again in its sandbox,
// init containers first, and what these write into a file is what the next containers
// have in their environment. An agent that is killed meanwhile makes no difference.
func TestAgentBeginsAgain(t *testing.T) {
	l := startLab(t)
	l.run(t, "again", `
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  volumes: [{name: v, emptyDir: {}}, {name: d, hostPath: {path: DIR}}]
  initContainers:
  - {name: init, image: IMAGE, args: [await, /d/env, copy, /d/env, /v/env], volumeMounts: [{name: v, mountPath: /v}, {name: d, mountPath: /d}]}
  containers:
  - {name: other, image: IMAGE, args: [sleep, for-ever]}
  - name: app
    image: IMAGE
    command: [/testbin, await, /d/go, exit, "42"]
    env: [{name: FROM_FILE, valueFrom: {fileKeyRef: {volumeName: v, path: env, key: KEY}}}]
    volumeMounts: [{name: d, mountPath: /d}]
    restartPolicy: Never
    restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}]
`, func(t *testing.T, l *lab) {
		// The init container waits for what it copies.
		says := func(value string) {
			t.Helper()
			path := filepath.Join(l.dir(), "env")
			if err := errors.Join(os.WriteFile(path+".new", []byte("KEY='"+value+"'\n"), 0o644), os.Rename(path+".new", path)); err != nil {
				t.Fatal(err)
			}
		}
		says("first")
		l.awaitReady()
		sandbox := l.sandboxes()[0].Id
		if out := l.exec("app", "env", "FROM_FILE"); strings.TrimSpace(out) != "first" {
			t.Errorf("from the file: %q", out)
		}
		says("second")
		touch(t, filepath.Join(l.dir(), "go"))
		l.until(func() bool {
			return l.condition(v1.AllContainersRestarting) == v1.ConditionTrue || l.status("app").RestartCount > 0
		}, "the pod begins again")
		if err := os.Remove(filepath.Join(l.dir(), "go")); err != nil {
			t.Fatal(err)
		}
		l.end(syscall.SIGKILL)
		l.start()
		for _, name := range []string{"app", "other", "init"} {
			l.awaitRestarts(name, 1)
		}
		l.awaitReady()
		if out := l.exec("app", "env", "FROM_FILE"); strings.TrimSpace(out) != "second" {
			t.Errorf("from the file: %q", out)
		}
		if now := l.sandboxes(); len(now) != 1 || now[0].Id != sandbox {
			t.Errorf("the sandbox is another one")
		}
		if phase := l.phase(); phase != v1.PodRunning {
			t.Errorf("the pod is %s", phase)
		}
	})
}
