package test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// An update with a surge begins a pod before one ends, each when the one before is
// ready, and a killed agent goes on where it was.
func TestAgentSurge(t *testing.T) {
	l := startLab(t)
	dir := filepath.Join(l.n.dir, "shared")
	apply := func(version string) {
		t.Helper()
		file := l.file("front.tmp", strings.NewReplacer("VERSION", version, "DIR", dir).Replace(`apiVersion: apps/v1
kind: Deployment
metadata: {name: front}
spec:
  replicas: 2
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  selector: {matchLabels: {app: front}}
  template:
    metadata: {labels: {app: front}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: app, image: IMAGE, args: [sleep, for-ever],
         env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}],
         readinessProbe: {exec: {command: [/testbin, cat, /d/ready]}, periodSeconds: 1, timeoutSeconds: 60},
         volumeMounts: [{name: d, mountPath: /d, subPathExpr: VERSION-$(POD)}]}
      volumes: [{name: d, hostPath: {path: DIR}}]
`))
		if err := os.Rename(file, filepath.Join(l.manifests, "front.yaml")); err != nil {
			t.Fatal(err)
		}
	}
	ready := func(name string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		touch(t, filepath.Join(dir, name, "ready"))
	}
	ready("one-front-0")
	ready("one-front-1")
	apply("one")
	pods := map[string]*lab{}
	old := map[string]string{} // containers
	for _, name := range []string{"front-0", "front-1", "front-2"} {
		pods[name] = l.pick(t, name)
	}
	for _, name := range []string{"front-0", "front-1"} {
		pods[name].awaitReady()
		old[name] = pods[name].status("app").ContainerID
	}
	stays := func(when string, names ...string) {
		t.Helper()
		for _, name := range names {
			if s := pods[name].status("app"); s.ContainerID != old[name] || !s.Ready {
				t.Errorf("%s %s is no longer what it was: %+v", when, name, s)
			}
		}
	}
	// begun waits for the container of a pod that is not ready yet.
	begun := func(name string) {
		t.Helper()
		pods[name].until(func() bool {
			s := pods[name].status("app")
			return s.State.Running != nil && s.ContainerID != old[name] && pods[name].condition(v1.PodReady) == v1.ConditionFalse
		}, name+" has begun anew")
	}
	apply("two")
	begun("front-2")
	stays("while a third begins", "front-0", "front-1")
	l.says(0, `front +2/2 +1 +2 `, "get", "deploy")
	l.restart()
	l.until(func() bool {
		out, code := l.agentProcess.crisp("", "get", "deploy")
		return code == 0 && regexp.MustCompile(`front +2/2 +1 +2 `).MatchString(out)
	}, "another agent knows where the update is")
	stays("with another agent", "front-0", "front-1")
	ready("two-front-2")
	begun("front-0")
	stays("while the second begins", "front-1")
	if !pods["front-2"].status("app").Ready {
		t.Error("front-2 is not ready")
	}
	ready("two-front-0")
	l.until(func() bool { return pods["front-1"].pod() == nil }, "the last old pod is gone")
	pods["front-0"].awaitReady()
	l.says(0, `front +2/2 +2 +2 `, "get", "deploy")
	l.until(func() bool { // a moment after its files
		out, _ := l.agentProcess.crisp("", "get", "pods", "-o", "name")
		return out == "pod/front-0\npod/front-2\n"
	}, "two pods are left")
	l.clear()
}

// A pod of a Deployment that did not fit is replaced, until one fits.
func TestAgentDeploymentFits(t *testing.T) {
	l := startLab(t)
	const app = `containers: [{name: app, image: IMAGE, args: [sleep, for-ever], ports: [{containerPort: 80, hostPort: 18081}]}]`
	l.file("manifests/holder.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: holder}\nspec: {terminationGracePeriodSeconds: 1, "+app+"}\n")
	l.pick(t, "holder").awaitReady()
	l.file("manifests/late.yaml", `apiVersion: apps/v1
kind: Deployment
metadata: {name: late}
spec:
  selector: {matchLabels: {app: late}}
  template:
    metadata: {labels: {app: late}}
    spec: {terminationGracePeriodSeconds: 1, `+app+`}
`)
	first, second := l.pick(t, "late-0"), l.pick(t, "late-1")
	first.awaitPhase(v1.PodFailed)
	second.awaitPhase(v1.PodFailed)
	if err := os.Remove(filepath.Join(l.manifests, "holder.yaml")); err != nil {
		t.Fatal(err)
	}
	l.until(func() bool { return first.phase() == v1.PodRunning || second.phase() == v1.PodRunning }, "one fits")
	l.says(0, `late +1/1 +1 +1 `, "get", "deploy")
	l.clear()
}
