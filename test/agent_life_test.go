package test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestAgentPods runs pods with all that may be in them on a real runtime.
func TestAgentPods(t *testing.T) {
	l := startLab(t)
	podsLive(t, l)
	podsAreProbed(t, l)
	podsHaveHooks(t, l)
	podsAreFound(t, l)
}

// podsLive: how pods begin, what is told of them, and how they end.
func podsLive(t *testing.T, l *lab) {
	l.run(t, "sidecars", `
  restartPolicy: Never
  terminationGracePeriodSeconds: 20
  initContainers:
  - {name: first, image: IMAGE, restartPolicy: Always, args: [catch, sleep, for-ever], startupProbe: {exec: {command: [/testbin, await, /d/started]}, timeoutSeconds: 30}, volumeMounts: [{name: d, mountPath: /d}]}
  - {name: init, image: IMAGE, args: [write, /d/init, done], volumeMounts: [{name: d, mountPath: /d}]}
  - {name: second, image: IMAGE, restartPolicy: Always, args: [catch, sleep, for-ever]}
  containers:
  - {name: app, image: IMAGE, args: [cat, /d/init, await, /d/end], volumeMounts: [{name: d, mountPath: /d}]}
  volumes: [{name: d, hostPath: {path: DIR}}]
`, func(t *testing.T, l *lab) {
		l.until(func() bool { return l.status("first").State.Running != nil }, "the first sidecar runs")
		if l.read("init") != "" || l.condition(v1.PodInitialized) != v1.ConditionFalse || l.phase() != v1.PodPending {
			t.Errorf("the init container did not wait for the sidecar to start: %+v", l.pod().Status)
		}
		touch(t, filepath.Join(l.dir(), "started"))
		l.awaitPhase(v1.PodRunning)
		l.until(func() bool { return l.condition(v1.ContainersReady) == v1.ConditionTrue }, "all are ready")
		if s := l.status("init"); s.State.Terminated == nil || !s.Ready {
			t.Errorf("init container: %+v", s)
		}
		touch(t, filepath.Join(l.dir(), "end"))
		l.awaitPhase(v1.PodSucceeded)
		l.until(func() bool { return l.status("first").State.Terminated != nil }, "the sidecars have ended")
		first, second, app := l.status("first"), l.status("second"), l.status("app")
		if a, b, c := app.State.Terminated.FinishedAt, second.State.Terminated.FinishedAt, first.State.Terminated.FinishedAt; b.Before(&a) || c.Before(&b) {
			t.Errorf("ended at %v, second sidecar %v, first %v", a, b, c)
		}
		if code := first.State.Terminated.ExitCode; code != 75 {
			t.Errorf("a sidecar ended with %d, want 60 and SIGTERM", code)
		}
	})

	l.run(t, "messages", `
  restartPolicy: Never
  containers:
  - {name: file, image: IMAGE, args: [write, /dev/termination-log, it is done], terminationMessagePolicy: FallbackToLogsOnError}
  - {name: log, image: IMAGE, args: [print, so it ended, exit, "3"], terminationMessagePolicy: FallbackToLogsOnError}
  - {name: good, image: IMAGE, args: [print, all is well], terminationMessagePolicy: FallbackToLogsOnError}
  - {name: mine, image: IMAGE, args: [write, /tmp-message, here, exit, "4"], terminationMessagePath: /tmp-message}
`, func(t *testing.T, l *lab) {
		l.awaitPhase(v1.PodFailed)
		for name, want := range map[string]string{"file": "it is done", "log": "so it ended\n", "good": "", "mine": "here"} {
			if s := l.status(name).State.Terminated; s == nil || s.Message != want {
				t.Errorf("%s: %+v, want %q", name, s, want)
			}
		}
	})

	l.run(t, "crash", `
  containers:
  - {name: app, image: IMAGE, args: [exit, "7"]}
  - {name: well, image: IMAGE, args: [sleep, for-ever]}
`, func(t *testing.T, l *lab) {
		l.awaitRestarts("app", 1)
		l.until(func() bool {
			w := l.status("app").State.Waiting
			return w != nil && w.Reason == "CrashLoopBackOff"
		}, "it waits for its back-off")
		s := l.status("app")
		if s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ExitCode != 7 || !strings.HasPrefix(s.State.Waiting.Message, "back-off 10s restarting failed container=app pod=crash_default(") {
			t.Errorf("status %+v", s)
		}
		if l.phase() != v1.PodRunning || l.condition(v1.PodReady) != v1.ConditionFalse {
			t.Errorf("the pod is %s, ready %s", l.phase(), l.condition(v1.PodReady))
		}
		l.awaitEvent("BackOff: Back-off restarting failed container app in pod crash_default(")
		l.awaitRestarts("app", 2)
		l.until(func() bool { return len(l.containers("app")) == 2 }, "two of its runs are kept")
		if n := l.status("well").RestartCount; n != 0 {
			t.Errorf("the other container was restarted %d times", n)
		}
	})

	l.run(t, "grace", `
  terminationGracePeriodSeconds: 3
  containers: [{name: app, image: IMAGE, args: [ignore-term, sleep, for-ever]}]
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		begin := time.Now()
		l.remove()
		l.until(func() bool { return l.pod() == nil }, "the pod is gone")
		if took := time.Since(begin); took < 3*time.Second {
			t.Errorf("killed after %v", took)
		}
	})

	l.run(t, "deadline", `
  activeDeadlineSeconds: 2
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: IMAGE, args: [sleep, for-ever]}]
`, func(t *testing.T, l *lab) {
		l.awaitPhase(v1.PodFailed)
		if s := l.pod().Status; s.Reason != "DeadlineExceeded" {
			t.Errorf("reason %q", s.Reason)
		}
		l.until(func() bool { return l.status("app").State.Running == nil }, "it does not run")
		begun := len(l.containers("")) // none, where it was too late for that already
		l.restart()
		l.until(func() bool { return len(l.sandboxes()) == 1 }, "the agent is back")
		time.Sleep(2 * time.Second)
		if l.phase() != v1.PodFailed || len(l.containers("")) != begun {
			t.Errorf("after a restart of the agent it is %s and has %d containers", l.phase(), len(l.containers("")))
		}
	})

	l.run(t, "rules", `
  restartPolicy: Never
  containers:
  - name: app
    image: IMAGE
    args: [run, /testbin, await, /d/go, exit, "42"]
    command: [/testbin, await, /d/go, exit, "42"]
    restartPolicy: Never
    restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]
    volumeMounts: [{name: d, mountPath: /d}]
  volumes: [{name: d, hostPath: {path: DIR}}]
`, func(t *testing.T, l *lab) {
		touch(t, filepath.Join(l.dir(), "go"))
		l.awaitRestarts("app", 1)
		if l.phase() != v1.PodRunning {
			t.Errorf("the pod is %s", l.phase())
		}
	})

	l.run(t, "sandbox", `
  initContainers: [{name: init, image: IMAGE, args: [print, hello]}]
  containers: [{name: app, image: IMAGE, args: [sleep, for-ever]}]
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		before := l.sandboxes()[0]
		if _, err := l.n.runtime().StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: before.Id}); err != nil {
			t.Fatal(err)
		}
		l.until(func() bool {
			return slices.ContainsFunc(l.sandboxes(), func(sb *cri.PodSandbox) bool {
				return sb.Metadata.Attempt == 1 && sb.State == cri.PodSandboxState_SANDBOX_READY
			})
		}, "there is another sandbox")
		l.awaitEvent("SandboxChanged: Pod sandbox changed, it will be killed and re-created.")
		l.awaitReady()
		if n := l.status("app").RestartCount; n != 1 {
			t.Errorf("the container was restarted %d times", n)
		}
		for _, c := range l.containers("init") {
			if c.PodSandboxId == before.Id {
				t.Error("an init container of the old sandbox is left")
			}
		}
	})

	l.run(t, "absent", `
  containers: [{name: app, image: "registry.invalid/none:1", imagePullPolicy: Never}]
`, func(t *testing.T, l *lab) {
		l.until(func() bool {
			w := l.status("app").State.Waiting
			return w != nil && w.Reason == "ErrImageNeverPull"
		}, "it says that the image is not there")
	})

	l.run(t, "unpullable", `
  containers: [{name: app, image: "127.0.0.1:1/none:1"}]
`, func(t *testing.T, l *lab) {
		seen := map[string]bool{}
		l.until(func() bool {
			if w := l.status("app").State.Waiting; w != nil {
				seen[w.Reason] = true
			}
			return seen["ImagePullBackOff"]
		}, "it waits for its back-off")
		if !seen["ErrImagePull"] && !seen["RegistryUnavailable"] {
			t.Errorf("it was shown as %v", seen)
		}
		l.awaitEvent("Pulling: Pulling image")
		l.awaitEvent("Failed: Failed to pull image")
		l.awaitEvent("BackOff: Back-off pulling image")
	})

	l.run(t, "inside", `
  subdomain: sub
  setHostnameAsFQDN: true
  hostAliases: [{ip: 192.0.2.7, hostnames: [seven]}]
  containers:
  - {name: app, image: IMAGE, args: [sleep, for-ever], env: [{name: B, value: "2"}, {name: A, value: "$(B)1"}]}
  - {name: half, image: IMAGE, args: [sleep, for-ever], resources: {requests: {memory: 1Mi}, limits: {cpu: 500m}}}
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		hosts := l.exec("app", "cat", "/etc/hosts")
		ip := l.pod().Status.PodIP
		for _, want := range []string{"# Kubernetes-managed hosts file.\n", ip + "\tinside.sub.default.svc.", "192.0.2.7\tseven\n"} {
			if !strings.Contains(hosts, want) {
				t.Errorf("hosts file without %q:\n%s", want, hosts)
			}
		}
		if name := l.exec("app", "hostname"); !strings.HasPrefix(name, "inside.sub.default.svc.") {
			t.Errorf("host name %q", name)
		}
		if got := l.exec("app", "env", "A"); got != "21\n" {
			t.Errorf("A is %q", got)
		}
		if got := l.pod().Status.QOSClass; got != v1.PodQOSBurstable {
			t.Errorf("quality of service %s", got)
		}
		if s := l.exec("app", "status", "Seccomp"); !strings.Contains(s, "2") {
			t.Errorf("Seccomp: %q", s)
		}
	})
}
