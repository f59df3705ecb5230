package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// file writes a file to the node's directory and returns its path.
func (n *node) file(name, text string) string {
	n.t.Helper()
	path := filepath.Join(n.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
	return path
}

// expect runs command lines. Each must exit with its code and print what its pattern matches.
func (n *node) expect(lines ...expectation) {
	n.t.Helper()
	for _, e := range lines {
		out, errs, code := n.crisp(e.line)
		if code != e.code || !regexp.MustCompile(e.pattern).MatchString(out+errs) {
			n.t.Errorf("crisp %s: code %d\n%s%swant code %d, %s", e.line, code, out, errs, e.code, e.pattern)
		}
	}
}

type expectation struct {
	line    string
	code    int
	pattern string
}

const stack = `apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {mode: fast}
---
` + webPod

// Objects of the local API are applied, changed, shown, deleted, and survive a restart of the
// agent.
func TestApply(t *testing.T) {
	n := newNode(t)
	stop := n.agent()
	f := n.file("stack.yaml", stack)
	n.until("status -o json", `"alive": true`)
	n.expect(
		expectation{"apply -f " + f + " --dry-run sever", 2, `--dry-run sever: want server or client`},
		expectation{"apply -f " + f + " --dry-run server", 0, `configmap/conf created \(dry run\)\npod/web created \(dry run\)\n$`},
		expectation{"get pods -o name", 0, `^$`},
		expectation{"apply -f " + f + " --wait", 0, `^configmap/conf created\npod/web created\n$`},
		expectation{"apply -f " + f, 0, `^configmap/conf unchanged\npod/web unchanged\n$`},
		expectation{"get pods -o wide", 0, `web +2/2 +Running +0 .* api +example.org/web:1`},
		expectation{"get cm", 0, `(?m)^NAME +DATA +AGE\nconf +1 `},
		expectation{"get cm/conf -o jsonpath={.data.mode}", 0, `^fast$`},
		expectation{"get pod web -o go-template={{.spec.nodeName}}", 0, `\w`},
		expectation{"get pods -l none=here", 0, `no pods`},
		expectation{"get cm none", 3, `there is no configmap default/none`},
		expectation{"describe web", 0, `(?s)Source: +api.*State: +running since.*Ready +True.*Events:`},
		expectation{"wait pod/web --for=Ready --timeout 5s", 0, `Ready`},
		expectation{"wait pod/web --for=phase=Failed --timeout 200ms", 5, `not so after`},
		expectation{"sources", 0, `(?s)api +configmap default/conf +configmap default/conf +known.*api +pod default/web +pod default/web +Running`},
		expectation{"events --for pod/web", 0, `(?s)Normal +Pulled.*pod/web.*Normal +Started`},
		expectation{"export pod/web", 0, `(?s)^apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  namespace: default\nspec:`},
		expectation{"config view", 0, `staticPodPath: /`},
		expectation{"get nodes", 0, `Ready`},
		expectation{"delete cm/conf", 0, `configmap/conf deleted`},
	)
	bad := n.file("bad.yaml", strings.Replace(webPod, "image:", "imagee:", 1))
	n.expect(
		expectation{"apply -f " + bad, 4, `bad.yaml:6: spec.containers\[0\].imagee: unknown field`},
		expectation{"apply -f " + bad + " --validate=warn", 4, `(?s)warning: .*unknown field.*spec.containers\[0\].image: is missing`},
		expectation{"apply -f " + filepath.Join(n.dir, "none.yaml"), 1, `no such file`},
	)

	// Another image changes the pod in place; another container replaces it.
	f = n.file("stack.yaml", strings.Replace(stack, "web:1", "web:2", 1))
	n.expect(expectation{"apply -f " + f, 0, `configmap/conf created\npod/web configured`})
	n.until("get pods -o wide", `example.org/web:2`)

	// The next agent has the object again, and continues a deletion.
	stop()
	n.expect(expectation{"get cm", 6, `agent is not reachable`}, expectation{"events --for pod/web", 0, `Started`})
	stop = n.agent()
	n.until("status -o json", `"alive": true`)
	n.until("get pods", `web +2/2 +Running `)
	n.expect(
		expectation{"get cm", 0, `conf`},
		expectation{"stop pod/web --grace-period 1 --timeout 20s", 0, `^pod/web stopped\n$`},
		expectation{"get pods", 0, `web +0/2 +Stopped `},
		expectation{"rm pod/web --grace-period 1 --timeout 20s", 0, `pod/web deleted`},
		expectation{"get pods -o name", 0, `^$`},
		expectation{"delete pod/web", 3, `there is no pod default/web`},
		expectation{"delete pod/web --ignore-not-found", 0, `^$`},
	)
	stop()
	if left, _ := filepath.Glob(filepath.Join(n.dir, "agent", "objects", "pod", "*", "*.json")); len(left) > 0 {
		t.Errorf("objects of a deleted pod: %v", left)
	}
}

// Objects from a file can be changed only in the file.
func TestFilesAreNotTheAPIs(t *testing.T) {
	n := newNode(t)
	n.manifest("web.yaml", webPod)
	n.agent()
	n.until("get pods", `web +2/2 `)
	path := filepath.Join(n.dir, "manifests", "web.yaml")
	n.expect(
		expectation{"delete pod/web", 1, `pod default/web is in the manifest ` + path},
		expectation{"apply -f " + n.file("web.yaml", webPod), 1, `is in the manifest`},
	)
	both := n.file("manifests/both.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: beside}}\n---\n"+strings.Replace(webPod, "name: web", "name: second", 1))
	n.until("get pods", `second +2/2 `)
	n.expect(
		expectation{"delete pod/second --remove-manifest", 1, both + ` defines configmap default/beside too`},
		expectation{"delete pod/web --remove-manifest", 0, path + ` removed`},
	)
	n.until("get pods -o name", `^pod/second\n$`)
}

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: front}
spec:
  replicas: 3
  selector: {matchLabels: {app: front}}
  template:
    metadata: {labels: {app: front}}
    spec:
      containers:
      - {name: app, image: "example.org/web:1"}
`

// A Deployment's pods have numbered names, and an update replaces a few at a time; by default one
// of three starts before an old one ends.
func TestDeployment(t *testing.T) {
	n := newNode(t)
	n.agent()
	n.until("status -o json", `"alive": true`)
	f := n.file("d.yaml", deployment)
	n.expect(
		expectation{"apply -f " + f + " --wait", 0, `deployment/front created`},
		expectation{"get deploy", 0, `front +3/3 +3 +3`},
		expectation{"describe deploy/front", 0, `(?s)front +3/3 +3 +3 .*Pod: front-\d 1/1 Running \S*web:1\n.*Events`},
		expectation{"get pods -o name -l app=front", 0, `^pod/front-0\npod/front-1\npod/front-2\n$`},
		expectation{"delete pod/front-0", 1, `is one of deployment default/front`},
		expectation{"apply -f " + n.file("d2.yaml", strings.Replace(deployment, "web:1", "web:2", 1)) + " --wait", 0, `deployment/front configured`},
		expectation{"get pods -o wide", 0, `(?s)front-0 .*web:2.*front-1 .*web:2.*front-3 .*web:2`},
		expectation{"apply -f " + n.file("d3.yaml", strings.Replace(deployment, "replicas: 3", "replicas: 1", 1)), 0, `configured`},
	)
	n.until("get pods -o name", `^pod/front-0\n$`)
	n.expect(expectation{"delete deploy front", 0, `deployment/front deleted`})
	n.until("get pods -o name", `^$`)
}

const job = `apiVersion: batch/v1
kind: Job
metadata: {name: sum}
spec:
  completions: 2
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: app, image: "example.org/sum:1"}
`

// A Job's pods run one after the other, and stay when it is done.
func TestJob(t *testing.T) {
	inRealTime(t)
	n := newNode(t)
	n.agent()
	n.until("status -o json", `"alive": true`)
	n.expect(expectation{"apply -f " + n.file("j.yaml", job), 0, `job/sum created`})
	n.until("get pods", `sum-0 +1/1 +Running`)
	n.exit(0)
	n.until("get pods", `(?s)sum-0 +0/1 +\S+ .*sum-1 +1/1 +Running`)
	n.exit(0)
	n.until("get jobs", `sum +Complete +2/2`)
	n.expect(expectation{"wait job/sum --for=Complete", 0, `Complete`}, expectation{"delete job sum", 0, `deleted`})
	n.until("get pods -o name", `^$`)
}

// A Job that exceeds its deadline has failed, and so has its pod, which ends and stays. The next
// agent does not start it again.
func TestJobDeadline(t *testing.T) {
	inRealTime(t)
	n := newNode(t)
	stop := n.agent()
	n.until("status -o json", `"alive": true`)
	n.expect(expectation{"apply -f " + n.file("j.yaml", job), 0, `job/sum created`})
	n.until("get pods", `sum-0 +1/1 +Running`)
	n.expect(expectation{"apply -f " + n.file("j.yaml", strings.Replace(job, "spec:\n", "spec:\n  activeDeadlineSeconds: 1\n", 1)), 0, `job/sum configured`})
	n.until("get pods", `sum-0 +0/1 +DeadlineExceeded`)
	n.until("get jobs", `sum +Failed +0/2`)
	stop()
	n.agent()
	n.until("status -o json", `"alive": true`)
	n.until("get jobs", `sum +Failed +0/2`)
	n.expect(expectation{"get pods", 0, `sum-0 +0/1 +DeadlineExceeded`}, expectation{"get pods -o name", 0, `^pod/sum-0\n$`})
}

// While an agent that was restarted has no answer of the runtime yet, pods are what they last were.
func TestStatusBeforeTheRuntimeAnswers(t *testing.T) {
	n := newNode(t)
	stop := n.agent()
	n.until("status -o json", `"alive": true`)
	n.expect(expectation{"apply -f " + n.file("web.yaml", webPod), 0, "created"})
	n.until("get pods", `web +2/2 +Running`)
	stop()
	n.away()
	n.agent()
	n.until("get pods -o name", `^pod/web\n$`)
	n.expect(expectation{"get pods", 0, `web +2/2 +Running`})
}

// A watch prints objects that are added, changed and removed.
func TestWatch(t *testing.T) {
	n := newNode(t)
	n.agent()
	n.until("status -o json", `"alive": true`)
	ctx, cancel := context.WithCancel(t.Context())
	out, said := io.Pipe()
	go func() {
		run(ctx, []string{"--runtime-endpoint", n.socket, "get", "cm", "-w", "-o", "name"}, nil, said, said)
		said.Close()
	}()
	lines := bufio.NewScanner(out)
	next := func() string {
		lines.Scan()
		return lines.Text()
	}
	n.expect(expectation{"apply -f " + n.file("a.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: one}}"), 0, "created"})
	got := []string{next()} // before it goes: what comes and goes at once is not seen
	n.expect(expectation{"delete cm one", 0, "deleted"})
	got = append(got, next())
	cancel()
	for lines.Scan() {
		got = append(got, lines.Text())
	}
	if !slices.Equal(got, []string{"configmap/one", "configmap/one"}) {
		t.Errorf("watched %q", got)
	}
}

// Objects whose manifests were removed from a directory are deleted.
func TestPrune(t *testing.T) {
	n := newNode(t)
	n.agent()
	n.until("status -o json", `"alive": true`)
	dir := filepath.Join(n.dir, "set")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two"} {
		n.file("set/"+name+".yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: "+name+"}}")
	}
	n.expect(
		expectation{"apply -f " + n.file("other.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: other}}"), 0, "created"},
		expectation{"apply --prune -f " + dir, 0, `configmap/one created\nconfigmap/two created`},
	)
	if err := os.Remove(filepath.Join(dir, "one.yaml")); err != nil {
		t.Fatal(err)
	}
	n.expect(
		expectation{"apply --prune -f " + dir, 0, `configmap/two unchanged\nconfigmap/one pruned`},
		expectation{"get cm -o name", 0, `^configmap/other\nconfigmap/two\n$`},
	)
}

// Two projects that have files of the same name, or use a pipe, must not delete each other's
// objects.
func TestPruneSparesOtherProjects(t *testing.T) {
	n := newNode(t)
	n.agent()
	n.until("status -o json", `"alive": true`)
	for _, project := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(n.dir, project), 0o755); err != nil {
			t.Fatal(err)
		}
		n.file(project+"/app.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: "+project+"}}")
		t.Chdir(filepath.Join(n.dir, project))
		n.expect(expectation{"apply --prune -f app.yaml", 0, `^configmap/` + project + ` created\n$`})
	}
	n.expect(
		expectation{"get cm -o name", 0, `^configmap/a\nconfigmap/b\n$`},
		expectation{"apply --prune -f -", 2, `name the set by --applyset`},
		expectation{"apply --prune --applyset one -f app.yaml", 0, `configmap/b configured`},
		expectation{"apply --prune --applyset one -f " + filepath.Join(n.dir, "a", "app.yaml"), 0, `configmap/a configured\nconfigmap/b pruned`},
	)
}

func TestRun(t *testing.T) {
	n := newNode(t)
	n.expect(
		expectation{"run --dry-run client --name t -p 127.0.0.1:8080:80/udp -v /h:/c:ro -e K=V --restart Never -l a=b example.org/x:1 -- echo hi", 0,
			`(?s)args:\n    - echo\n    - hi\n    env:\n    - name: K\n      value: V\n.*containerPort: 80\n      hostIP: 127.0.0.1\n      hostPort: 8080\n      protocol: UDP.*readOnly: true.*restartPolicy: Never.*path: /h`},
		expectation{"run -p 80 x", 2, `want \[IP:\]HOST:CONTAINER`},
		expectation{"run", 2, `takes an image`},
	)
	n.agent()
	n.until("status -o json", `"alive": true`)
	n.expect(expectation{"run --name t example.org/x:1", 0, `^pod/t created\n$`})
	n.until("get pods", `t +1/1 +Running`)
	n.expect(
		expectation{"run --name t example.org/x:1", 1, `pod default/t is already there`},
		expectation{"restart t", 0, `t/main restarted`},
	)
	n.until("get pods", `t +1/1 +Running +1 `)
	n.expect(expectation{"delete t --force", 0, `pod/t deleted`})
}

// Interrupting "run --rm" returns to the prompt and leaves no running pod.
func TestRunRemovesWhatIsInterrupted(t *testing.T) {
	inRealTime(t)
	n := newNode(t)
	n.agent()
	n.until("status -o json", `"alive": true`)
	n.crispFor(2*time.Second, "run --rm --name gone --pull Never example.org/absent:1") // it is waiting for the image
	n.expect(expectation{"get pods -o name", 0, `^$`})
}

// Pods of a URL stay when its server is down, even across a crash of the agent. Before the server
// has ever answered no pod ends.
func TestManifestURL(t *testing.T) {
	n := newNode(t)
	text := webPod
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, text) }))
	n.flags = []string{"--manifest-url", h.URL}
	n.manifest("other.yaml", strings.Replace(webPod, "name: web", "name: other", 1))
	stop := n.agent()
	n.until("get pods -o wide", `(?s)other +2/2 .* file .*web +2/2 .* http `)
	h.Close()
	stop()
	stop = n.agent()
	n.until("sources", `(?s)http +http://\S+ +Get .*connection refused.*http +http://\S+ +pod default/web +Running`)
	n.expect(expectation{"get pods", 0, `web +2/2 +Running +0 `}, expectation{"delete pod/web", 1, `comes from http://`})
	stop()

	// Nothing is known of another URL that never answers, so web must not end.
	n.flags = []string{"--manifest-url", h.URL + "/never"}
	n.manifest("other.yaml", "")
	n.agent()
	n.until("sources", `http +not read yet`)
	n.until("get pods", `(?s)other +2/2 +Running .*web +2/2 +Running`)
	time.Sleep(time.Second)
	n.expect(expectation{"get pods", 0, `(?s)other +2/2 +Running .*web +2/2 +Running`})
}

// Images that are in use or pinned stay.
func TestImagePrune(t *testing.T) {
	n := newNode(t)
	n.runtime.ImageService.SetFakeImagePinned("example.org/pause:1", true)
	n.manifest("web.yaml", webPod)
	n.agent()
	n.until("get pods", `web +2/2 `)
	n.expect(
		expectation{"pull example.org/old:1", 0, `old`}, expectation{"pull example.org/pause:1", 0, `pause`},
		expectation{"image prune", 0, `^example.org/old:1\n$`},
		expectation{"images", 0, `(?s)example.org/pause:1.*example.org/side:1.*example.org/web:1`},
	)
}

// A change of another file in the directory, or of a comment, leaves a pod alone.
func TestUnrelatedFile(t *testing.T) {
	inRealTime(t)
	n := newNode(t)
	n.manifest("web.yaml", webPod)
	n.agent()
	n.until("get pods", `web +2/2 `)
	before, _, _ := n.crisp("get pod web -o jsonpath={.metadata.uid}{.status.containerStatuses[*].containerID}")
	n.manifest("other.yaml", strings.Replace(webPod, "name: web", "name: other", 1))
	n.until("get pods", `other +2/2 `)
	n.manifest("other.yaml", "x: [")
	n.until("sources", `other.yaml +\S+other.yaml:1`)
	n.manifest("web.yaml", webPod+"# a comment\n")
	n.manifest("other.yaml", "")
	n.until("get pods", `^NAME.*\nweb .*\n$`)
	if after, _, _ := n.crisp("get pod web -o jsonpath={.metadata.uid}{.status.containerStatuses[*].containerID}"); after != before {
		t.Errorf("web was %s and is %s", before, after)
	}
}
