package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/agent/event"
)

// A lab is an agent on a runtime of its own, and one pod by the name of its test.
type lab struct {
	*agentProcess
	name string
}

func startLab(t *testing.T) *lab {
	t.Helper()
	n, _ := startNode(t)
	manifests := filepath.Join(n.dir, "manifests")
	if err := os.Mkdir(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	l := &lab{agentProcess: &agentProcess{t: t, n: n, manifests: manifests}}
	l.start()
	t.Cleanup(func() { l.end(syscall.SIGTERM) })
	return l
}

// run makes f a test of the pod that the spec describes: "IMAGE" in it is the
// tests' image, "DIR" a directory that the containers may share with the test.
// When f returns the pod is ended, and nothing of it may be left.
func (l *lab) run(t *testing.T, name, spec string, f func(t *testing.T, l *lab)) {
	t.Run(name, func(t *testing.T) {
		agent := *l.agentProcess
		agent.t = t
		mine := &lab{&agent, name}
		if err := os.MkdirAll(mine.dir(), 0o777); err != nil {
			t.Fatal(err)
		}
		mine.write(spec)
		f(t, mine)
		l.agentProcess.cmd = mine.cmd // it may have been started anew
		mine.remove()
		mine.until(func() bool { return mine.pod() == nil }, "the pod "+name+" is gone")
	})
}

func (l *lab) dir() string      { return filepath.Join(l.n.dir, "shared", l.name) }
func (l *lab) manifest() string { return filepath.Join(l.manifests, l.name+".yaml") }

func (l *lab) write(spec string) {
	l.t.Helper()
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: " + l.name + ", labels: {test: " + l.name + "}}\nspec:\n" +
		strings.NewReplacer("    image: IMAGE\n", "    image: "+testImage+"\n    imagePullPolicy: Never\n",
			"IMAGE", `"`+testImage+`", imagePullPolicy: Never`, "DIR", l.dir()).Replace(spec)
	tmp := filepath.Join(l.n.dir, l.name+".tmp")
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		l.t.Fatal(err)
	}
	if err := os.Rename(tmp, l.manifest()); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) remove() {
	l.t.Helper()
	if err := os.Remove(l.manifest()); err != nil && !os.IsNotExist(err) {
		l.t.Fatal(err)
	}
}

// pod returns the pod with its status as the agent has it; nil if it has none.
func (l *lab) pod() *v1.Pod {
	l.t.Helper()
	paths, _ := filepath.Glob(filepath.Join(l.n.dir, "agent", "pods", "*", "pod.json"))
	for _, path := range paths {
		var pod v1.Pod
		data, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(data, &pod) != nil || pod.Name != l.name {
			continue // it goes this moment
		}
		if data, err = os.ReadFile(filepath.Join(filepath.Dir(path), "status.json")); err == nil {
			if err := json.Unmarshal(data, &pod.Status); err != nil {
				l.t.Fatal(err)
			}
		}
		return &pod
	}
	return nil
}

// status is that of one container; the zero value if there is none yet.
func (l *lab) status(container string) v1.ContainerStatus {
	l.t.Helper()
	pod := l.pod()
	if pod == nil {
		return v1.ContainerStatus{}
	}
	for _, list := range [][]v1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for _, s := range list {
			if s.Name == container {
				return s
			}
		}
	}
	return v1.ContainerStatus{}
}

func (l *lab) phase() v1.PodPhase {
	if pod := l.pod(); pod != nil {
		return pod.Status.Phase
	}
	return ""
}

func (l *lab) condition(kind v1.PodConditionType) v1.ConditionStatus {
	if pod := l.pod(); pod != nil {
		for _, c := range pod.Status.Conditions {
			if c.Type == kind {
				return c.Status
			}
		}
	}
	return ""
}

func (l *lab) awaitPhase(p v1.PodPhase) {
	l.t.Helper()
	l.until(func() bool { return l.phase() == p }, fmt.Sprintf("pod %s is %s", l.name, p))
}

func (l *lab) awaitReady() {
	l.t.Helper()
	l.until(func() bool { return l.condition(v1.PodReady) == v1.ConditionTrue }, "pod "+l.name+" is ready")
}

func (l *lab) awaitRestarts(container string, n int32) {
	l.t.Helper()
	l.until(func() bool { return l.status(container).RestartCount >= n }, fmt.Sprintf("container %s was restarted %d times", container, n))
}

// events are those of the pod: "Reason: message", the oldest first.
func (l *lab) events() []string {
	l.t.Helper()
	all, err := event.Read(filepath.Join(l.n.dir, "agent", "events"))
	if err != nil {
		l.t.Fatal(err)
	}
	var lines []string
	for _, e := range all {
		if e.InvolvedObject.Name == l.name {
			lines = append(lines, e.Reason+": "+e.Message)
		}
	}
	return lines
}

func (l *lab) awaitEvent(part string) {
	l.t.Helper()
	l.until(func() bool {
		return slices.ContainsFunc(l.events(), func(e string) bool { return strings.Contains(e, part) })
	}, "there is the event "+part)
}

// containers lists what the runtime has of the pod, or of one container of it.
func (l *lab) containers(name string) []*cri.Container {
	l.t.Helper()
	selector := map[string]string{"io.kubernetes.pod.name": l.name}
	if name != "" {
		selector["io.kubernetes.container.name"] = name
	}
	resp, err := l.n.runtime().ListContainers(l.t.Context(), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: selector}})
	if err != nil {
		l.t.Fatal(err)
	}
	return resp.Containers
}

func (l *lab) sandboxes() []*cri.PodSandbox {
	l.t.Helper()
	resp, err := l.n.runtime().ListPodSandbox(l.t.Context(), &cri.ListPodSandboxRequest{
		Filter: &cri.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.name": l.name}},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return resp.Items
}

// exec runs testbin in a running container and returns what it wrote.
func (l *lab) exec(container string, args ...string) string {
	l.t.Helper()
	_, id, _ := strings.Cut(l.status(container).ContainerID, "://")
	resp, err := l.n.runtime().ExecSync(l.t.Context(), &cri.ExecSyncRequest{ContainerId: id, Cmd: append([]string{"/testbin"}, args...), Timeout: 20})
	if err != nil || resp.ExitCode != 0 {
		l.t.Fatalf("exec %q: %v, %v", args, resp, err)
	}
	return string(resp.Stdout)
}

func (l *lab) read(file string) string {
	data, err := os.ReadFile(filepath.Join(l.dir(), file))
	if err != nil {
		return ""
	}
	return string(data)
}

// restart kills the agent and starts another.
func (l *lab) restart() {
	l.t.Helper()
	l.end(syscall.SIGKILL)
	l.start()
}

// TestAgentPods runs pods with all that may be in them on a real runtime.
func TestAgentPods(t *testing.T) {
	l := startLab(t)

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

	l.run(t, "liveness", `
  terminationGracePeriodSeconds: 8
  containers:
  - name: app
    image: IMAGE
    args: [ignore-term, sleep, for-ever]
    livenessProbe: {exec: {command: [/testbin, cat, /d/alive]}, periodSeconds: 1, failureThreshold: 2, terminationGracePeriodSeconds: 1}
    readinessProbe: {exec: {command: [/testbin, cat, /d/ready]}, periodSeconds: 1, failureThreshold: 1}
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
    startupProbe: {httpGet: {path: /, port: web}, periodSeconds: 1, failureThreshold: 30}
    livenessProbe: {tcpSocket: {port: 80}, periodSeconds: 1}
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
  - {name: web, image: IMAGE, args: [http, ":80", hello, sleep, for-ever], lifecycle: {postStart: {sleep: {seconds: 1}}, preStop: {httpGet: {path: /bye, port: 80}}}}
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
		l.until(func() bool { return l.status("app").State.Terminated != nil }, "it has ended")
		l.restart()
		l.until(func() bool { return len(l.sandboxes()) == 1 }, "the agent is back")
		time.Sleep(2 * time.Second)
		if l.phase() != v1.PodFailed || len(l.containers("")) != 1 {
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
		l.end(syscall.SIGKILL)
		l.remove()
		// Even what the agent knew of it is lost: labels and annotations remain.
		if err := os.RemoveAll(filepath.Join(l.n.dir, "agent", "pods", string(l.pod().UID), "pod.json")); err != nil {
			t.Fatal(err)
		}
		l.start()
		l.until(func() bool { return len(l.sandboxes()) == 0 }, "the pod is gone")
		if l.read("ends") != "1" {
			t.Error("the hook before the end has not run")
		}
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

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
}
