package test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// podsAreProbed: what probes say decides who is ready and who is restarted.
func podsAreProbed(t *testing.T, l *lab) {
	l.run(t, "liveness", `
  terminationGracePeriodSeconds: 8
  containers:
  - name: app
    image: IMAGE
    args: [ignore-term, sleep, for-ever]
    livenessProbe: {exec: {command: [/testbin, cat, /d/alive]}, periodSeconds: 1, timeoutSeconds: 60, failureThreshold: 2, terminationGracePeriodSeconds: 1}
    readinessProbe: {exec: {command: [/testbin, cat, /d/ready]}, periodSeconds: 1, timeoutSeconds: 60, failureThreshold: 1}
    volumeMounts: [{name: d, mountPath: /d}]
  volumes: [{name: d, hostPath: {path: DIR}}]
`, func(t *testing.T, l *lab) {
		touch(t, filepath.Join(l.dir(), "alive"))
		l.until(func() bool { return l.status("app").State.Running != nil }, "it runs")
		l.awaitEvent("Unhealthy: Readiness probe failed")
		if l.condition(v1.PodReady) != v1.ConditionFalse || l.phase() != v1.PodRunning {
			t.Error("a pod is ready before its probe has said so")
		}
		touch(t, filepath.Join(l.dir(), "ready"))
		l.awaitReady()
		if err := os.Remove(filepath.Join(l.dir(), "ready")); err != nil {
			t.Fatal(err)
		}
		l.until(func() bool { return l.condition(v1.PodReady) == v1.ConditionFalse }, "it is not ready any more")
		if n := l.status("app").RestartCount; n != 0 {
			t.Errorf("restarted %d times for not being ready", n)
		}
		if err := os.Remove(filepath.Join(l.dir(), "alive")); err != nil {
			t.Fatal(err)
		}
		l.awaitRestarts("app", 1)
		l.awaitEvent("Killing: Container app failed liveness probe, will be restarted")
		// The probe's own grace: nobody waits for a program that ignores SIGTERM.
		if s := l.status("app").LastTerminationState.Terminated; s == nil || s.ExitCode != 137 {
			t.Errorf("it ended so: %+v", s)
		}
	})

	l.run(t, "startup", `
  containers:
  - name: app
    image: IMAGE
    args: [http, ":80", hello, sleep, for-ever]
    ports: [{name: web, containerPort: 80}]
    startupProbe: {httpGet: {path: /, port: web}, periodSeconds: 1, timeoutSeconds: 60, failureThreshold: 60}
    livenessProbe: {tcpSocket: {port: 80}, periodSeconds: 1, timeoutSeconds: 60}
    readinessProbe: {httpGet: {path: /x, port: 80}, periodSeconds: 1}
  - {name: never, image: IMAGE, args: [sleep, for-ever], startupProbe: {tcpSocket: {port: 81}, periodSeconds: 1, failureThreshold: 2, terminationGracePeriodSeconds: 1}}
`, func(t *testing.T, l *lab) {
		l.until(func() bool { return l.status("app").Ready }, "the container is ready")
		if s := l.status("app"); s.Started == nil || !*s.Started || s.RestartCount != 0 {
			t.Errorf("status %+v", s)
		}
		l.awaitRestarts("never", 1)
		l.awaitEvent("Killing: Container never failed startup probe, will be restarted")
	})
}

// podsHaveHooks: hooks run after a start and before an end.
func podsHaveHooks(t *testing.T, l *lab) {
	l.run(t, "hooks", `
  terminationGracePeriodSeconds: 20
  containers:
  - name: app
    image: IMAGE
    args: [catch, sleep, for-ever]
    lifecycle:
      postStart: {exec: {command: [/testbin, write, /d/begun, "1"]}}
      preStop: {exec: {command: [/testbin, write, /d/ends, "1"]}}
    volumeMounts: [{name: d, mountPath: /d}]
  - {name: sleepy, image: IMAGE, args: [catch, sleep, for-ever], lifecycle: {preStop: {sleep: {seconds: 2}}}}
  - name: web
    image: IMAGE
    args: [http, ":80", hello, sleep, for-ever]
    readinessProbe: {tcpSocket: {port: 80}, periodSeconds: 1}
    lifecycle: {postStart: {sleep: {seconds: 1}}, preStop: {httpGet: {path: /bye, port: 80}}}
  volumes: [{name: d, hostPath: {path: DIR}}]
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		if l.read("begun") != "1" {
			t.Error("the hook after the start has not run")
		}
		begin := time.Now()
		l.remove()
		l.until(func() bool { return l.pod() == nil }, "the pod is gone")
		if l.read("ends") != "1" {
			t.Error("the hook before the end has not run")
		}
		if took := time.Since(begin); took < 2*time.Second {
			t.Errorf("it ended after %v, with a hook of 2 s", took)
		}
		if i := slices.IndexFunc(l.events(), func(e string) bool { return strings.HasPrefix(e, "FailedPreStopHook") }); i >= 0 {
			t.Errorf("a hook failed: %q", l.events())
		}
	})

	l.run(t, "badhook", `
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: IMAGE
    args: [sleep, for-ever]
    lifecycle: {postStart: {exec: {command: [/testbin, print, secret, exit, "1"]}}}
`, func(t *testing.T, l *lab) {
		l.awaitEvent("FailedPostStartHook: PostStartHook failed")
		l.awaitRestarts("app", 1)
		for _, e := range l.events() {
			if strings.Contains(e, "secret") {
				t.Errorf("an event tells what the hook said: %s", e)
			}
		}
		if s := l.status("app").LastTerminationState.Terminated; s == nil || s.ExitCode == 0 {
			t.Errorf("it was not killed: %+v", s)
		}
	})
}
