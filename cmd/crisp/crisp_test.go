package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilexec "k8s.io/client-go/util/exec"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/fake"
)

// A node is a runtime in memory behind a real socket, and a directory for the agent. It has no
// streaming server and writes no logs; test/script tests those with crispd.
type node struct {
	t       *testing.T
	dir     string
	socket  string
	runtime *fake.RemoteRuntime
	server  *grpc.Server
	flags   []string // more flags of the agent
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "crisp") // short, since it is part of a socket's path
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, dir: dir, socket: "unix://" + filepath.Join(dir, "s"), runtime: newRuntime()}
	n.serve()
	if err := os.Mkdir(filepath.Join(dir, "manifests"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CRISP_AGENT_ROOT", filepath.Join(dir, "agent"))
	t.Cleanup(func() {
		n.away()
		os.RemoveAll(dir)
	})
	return n
}

func newRuntime() *fake.RemoteRuntime {
	r := fake.NewFakeRemoteRuntime()
	r.ImageService.SetFakeImageSize(1) // cri-client requires a size
	r.RuntimeService.FakeStatus = &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
		{Type: cri.RuntimeReady, Status: true}, {Type: cri.NetworkReady, Status: true},
	}}
	return r
}

// serve makes the fake runtime answer on the node's socket, with these interceptors.
func (n *node) serve(through ...grpc.UnaryServerInterceptor) {
	n.t.Helper()
	path := strings.TrimPrefix(n.socket, "unix://")
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		n.t.Fatal(err)
	}
	n.server = grpc.NewServer(grpc.ChainUnaryInterceptor(append(through, withCode)...))
	cri.RegisterRuntimeServiceServer(n.server, n.runtime)
	cri.RegisterImageServiceServer(n.server, n.runtime)
	l := listen(n.t, path)
	l.(*net.UnixListener).SetUnlinkOnClose(false) // by then the path may belong to the next server
	go n.server.Serve(l)
}

// away stops the runtime's server. Its containers keep running.
func (n *node) away() { n.server.Stop() }

// withCode adds the codes of real runtimes to errors of the fake, which have none.
func withCode(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	resp, err := handle(ctx, req)
	if err != nil && grpcstatus.Code(err) == codes.Unknown && strings.HasSuffix(err.Error(), "not found") {
		err = grpcstatus.Error(codes.NotFound, err.Error())
	}
	return resp, err
}

// inRealTime skips, with -short, a test in which a whole agent waits for seconds: for its periods
// or retries.
func inRealTime(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out by -short: a whole agent waits for seconds of real time")
	}
}

// crisp runs a command line.
func (n *node) crisp(line string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	args := append([]string{"--runtime-endpoint", n.socket}, strings.Fields(line)...)
	code = run(n.t.Context(), args, strings.NewReader(""), &out, &errs)
	return out.String(), errs.String(), code
}

// crispFor runs a command line for a limited time.
func (n *node) crispFor(d time.Duration, line string) (stdout, stderr string, code int) {
	ctx, cancel := context.WithTimeout(n.t.Context(), d)
	defer cancel()
	var out, errs bytes.Buffer
	code = run(ctx, append([]string{"--runtime-endpoint", n.socket}, strings.Fields(line)...), strings.NewReader(""), &out, &errs)
	return out.String(), errs.String(), code
}

// anyDisk makes an agent ignore the machine's disk, which may be nearly full.
var anyDisk = []string{"--image-gc-high-threshold", "100", "--eviction-hard", "memory.available<100Mi"}

// agent runs an agent until the returned function is called.
func (n *node) agent() (stop func()) {
	ctx, cancel := context.WithCancel(n.t.Context())
	ended := make(chan int)
	var errs bytes.Buffer
	go func() {
		args := []string{"--runtime-endpoint", n.socket, "agent", "--manifests", filepath.Join(n.dir, "manifests"), "--root", filepath.Join(n.dir, "agent"), "--node-ip", "192.0.2.1", "--resolv-conf", ""}
		if !slices.Contains(n.flags, "--config") { // a flag would override its values
			args = append(args, anyDisk...)
		}
		ended <- run(ctx, append(args, n.flags...), nil, &errs, &errs)
	}()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if code := <-ended; code != 0 {
			n.t.Errorf("agent ended with code %d", code)
		}
		if n.t.Failed() {
			n.t.Logf("agent:\n%s", errs.String())
		}
	}
	n.t.Cleanup(stop)
	return stop
}

func (n *node) manifest(name, text string) {
	n.t.Helper()
	path := filepath.Join(n.dir, "manifests", name)
	err := os.Remove(path)
	if text != "" {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// until runs line until it succeeds and its output matches.
func (n *node) until(line, pattern string) {
	n.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		out, errs, code := n.crisp(line)
		if answers(pattern, out, code) {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("crisp %s\n%s%swant %s", line, out, errs, pattern)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// answers reports whether the output of a command that exited with a code matches. A failed command
// without output does not match.
func answers(pattern, out string, code int) bool {
	return (code == 0 || out != "") && regexp.MustCompile(pattern).MatchString(out)
}

// The UIDs of pods of files have the node's name. So an agent keeps the first one when the host gets
// another name, as many do at their first boots, and no pod is replaced; unless it is told a name.
func TestNodeKeepsItsName(t *testing.T) {
	n := newNode(t)
	n.manifest("web.yaml", webPod)
	uid := func(node string) string {
		t.Helper()
		stop := n.agent()
		defer stop()
		n.until("get nodes -o name", `^node/`+node+`\n$`)
		n.until("get pods", `web +2/2 `)
		out, _, _ := n.crisp("get pod/web -o jsonpath={.metadata.uid}")
		return out
	}
	n.flags = []string{"--node-name", "first"}
	first := uid("first")
	n.flags = nil
	if now := uid("first"); now != first || first == "" {
		t.Errorf("under the host's own name: pod %s, before %s", now, first)
	}
	n.flags = []string{"--node-name", "second"}
	n.agent()
	n.await("pod of another UID", func() bool { // until it has read the manifest, it shows what the last agent saved
		now, _, code := n.crisp("get pod/web -o jsonpath={.metadata.uid}")
		return code == 0 && now != first
	})
}

// An agent whose directory was moved, as to a larger disk, finds its pods; another agent leaves them.
func TestAgentMoves(t *testing.T) {
	n := newCalls(t)
	n.begin()
	n.manifest("web.yaml", webPod)
	stop := n.agent()
	n.until("get pods", `web +2/2 +Running +0 `)
	stop()
	root := filepath.Join(n.dir, "agent")
	if err := os.Rename(root, root+".moved"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CRISP_AGENT_ROOT", root+".moved")
	n.manifest("web.yaml", strings.Replace(webPod, "web:1", "web:2", 1))
	n.flags = []string{"--root", root + ".moved"}
	stop = n.agent()
	n.until("get pods -o wide", `^NAME .*\nweb +2/2 +Running +0 .* file +example.org/web:2,example.org/side:1 .*\n$`)
	stop()
	n.forget()
	n.manifest("web.yaml", "")
	n.manifest("more.yaml", strings.Replace(webPod, "name: web}", "name: more}", 1))
	t.Setenv("CRISP_AGENT_ROOT", root+".other")
	n.flags = []string{"--root", root + ".other"}
	n.agent()
	n.until("get pods", `(?s)more +2/2 +Running .*web +2/2 +Running `)
	if ended := n.made("Stop", "Remove"); len(ended) > 0 {
		t.Errorf("another agent called %q", ended)
	}
	if out, _, code := n.crisp("doctor"); code == 0 || !regexp.MustCompile(`(?m)^pods +1 are another agent's, \w+\n .*--label io.crisp.agent=\w+\)$`).MatchString(out) {
		t.Errorf("code %d\n%s", code, out)
	}
}

// A failed command also prints nothing, which must not count as an empty answer.
func TestNothingOfAFailureIsNoAnswer(t *testing.T) {
	for _, test := range []struct {
		pattern, out string
		code         int
		want         bool
	}{
		{`^$`, "", 0, true},
		{`^$`, "", 6, false},
		{`^$`, "pod/web\n", 0, false},
		{`web`, "pod/web\n", 3, true},
	} {
		if got := answers(test.pattern, test.out, test.code); got != test.want {
			t.Errorf("%s, output %q, code %d: %v", test.pattern, test.out, test.code, got)
		}
	}
}

// exit ends all running containers as if they had exited.
func (n *node) exit(code int32) {
	s := n.runtime.RuntimeService
	s.Lock()
	defer s.Unlock()
	for _, c := range s.Containers {
		if c.State == cri.ContainerState_CONTAINER_RUNNING {
			c.State, c.ExitCode, c.Reason, c.FinishedAt = cri.ContainerState_CONTAINER_EXITED, code, "Error", time.Now().UnixNano()
		}
	}
}

const webPod = `apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - {name: app, image: "example.org/web:1"}
  - {name: side, image: "example.org/side:1"}
`

// The life of a pod from its manifest to its end, seen on the command line: the agent runs it,
// restarts containers, applies an edit, and may be down in between.
func TestAgent(t *testing.T) {
	n := newNode(t)
	n.manifest("web.yaml", webPod)
	stop := n.agent()
	n.until("get pods", `web +2/2 +Running +0 +\S+ +192\.168\.192\.168\n`)

	n.exit(1)
	n.until("get pods", `web +2/2 +Running +2 `)

	// Neither the command line nor the containers need the agent.
	stop()
	n.until("get pods -A", `default +web +2/2 +Running +2 `)
	n.manifest("web.yaml", strings.Replace(webPod, "web:1", "web:2", 1))
	stop = n.agent()
	n.until("get pods -o wide", `web +2/2 +Running +0 .* file +example.org/web:2,example.org/side:1 `)

	// A broken file ends no pod, not even its own, and not even under a new agent.
	n.manifest("web.yaml", "x: [")
	n.manifest("other.yaml", strings.Replace(webPod, "name: web}", "name: other}", 1))
	n.until("get pods", `(?s)other +2/2 .*web +2/2 `)
	// What means nothing on one node is left out, and said.
	n.manifest("other.yaml", "kind: Ingress\n---\n"+strings.Replace(webPod, "name: web}", "name: other}", 1))
	n.until("sources", `other.yaml .*warning: .*other.yaml:1: kind: Ingress is left out: `)
	n.expect(expectation{"get pods", 0, `other +2/2 `})
	// A shell completes the names of pods and of other objects.
	n.expect(
		expectation{"__complete logs w", 0, `^web\n`},
		expectation{"__complete describe pod/", 0, `^pod/other\npod/web\n`},
		expectation{"__complete logs -n kube-system w", 0, `^:4\n`},
		expectation{"__complete get pods", 0, `^pods\n`},
		expectation{"__complete get pods ot", 0, `^other\n`},
		expectation{"__complete delete we", 0, `^web\n`},
		expectation{"__complete logs web -c a", 0, `^app\n:`},
		expectation{"__complete logs -n de", 0, `^default\n`},
	)
	stop()
	stop = n.agent()
	n.manifest("other.yaml", "")
	n.until("get pods", `^NAME .*\nweb +2/2 +Running +0 .*\n$`)

	n.manifest("web.yaml", "")
	n.until("get pods -o name", `^$`)
	stop()
	for _, dir := range []string{"pods", "logs"} {
		if entries, err := os.ReadDir(filepath.Join(n.dir, "agent", dir)); err != nil || len(entries) > 0 {
			t.Errorf("%s has %v, %v", dir, entries, err)
		}
	}
}

// Pods of other clients of the runtime are shown and not touched.
func TestForeignPods(t *testing.T) {
	n := newNode(t)
	s := n.runtime.RuntimeService
	if _, err := s.RunPodSandbox(t.Context(), &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Name: "kubelets", Namespace: "kube-system", Uid: "k"}}, ""); err != nil {
		t.Fatal(err)
	}
	n.manifest("web.yaml", webPod)
	n.agent()
	n.until("get pods -A", `(?s)default +web +2/2 .*kube-system +kubelets +0/0 `)
	n.manifest("web.yaml", "")
	n.until("get pods -A -o name", `^pod/kubelets\n$`)
}

// get and logs show an image that cannot be pulled.
func TestWhyPodWaits(t *testing.T) {
	inRealTime(t)
	n := newNode(t)
	n.runtime.ImageService.InjectError("PullImage", errors.New("no such image"))
	n.manifest("web.yaml", strings.Replace(webPod, "web:1", "web:latest", 1))
	n.agent()
	n.until("get pods", `web +1/2 +ImagePullBackOff +0 `)
	_, errs, code := n.crisp("logs web -c app")
	if code != exitNotFound || !strings.Contains(errs, "ImagePullBackOff: Back-off pulling image \"example.org/web:latest\": ErrImagePull: no such image") {
		t.Errorf("logs: code %d, %s", code, errs)
	}
}

// A pod whose sandbox cannot be created is shown, although the runtime does not know it, and starts
// when the obstacle is gone.
func TestWhyPodHasNoSandbox(t *testing.T) {
	inRealTime(t)
	n := newNode(t)
	missing := filepath.Join(n.dir, "missing")
	n.manifest("web.yaml", webPod+"  volumes: [{name: v, hostPath: {path: "+missing+", type: Directory}}]\n")
	n.agent()
	n.until("get pods -o wide", `web +0/2 +FailedMount +0 .* file .* <none>\n`)
	_, errs, code := n.crisp("logs web -c app")
	if code != exitNotFound || !strings.Contains(errs, "FailedMount: ") || !strings.Contains(errs, "stat "+missing) {
		t.Errorf("logs: code %d, %s", code, errs)
	}
	if err := os.Mkdir(missing, 0o755); err != nil {
		t.Fatal(err)
	}
	n.until("get pods", `web +2/2 +Running `)
}

func TestCommandLine(t *testing.T) {
	n := newNode(t)
	broken := filepath.Join(n.dir, "broken.yaml")
	if err := os.WriteFile(broken, []byte(strings.Replace(webPod, "name: app", "nam: app", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		line   string
		code   int
		stdout string // patterns
		stderr string
	}{
		{"help", 0, `(?s)usage: crisp .*  exec +run a command`, `^$`},
		{"help exec", 0, `(?s)usage: crisp exec .*  -c, --container name +name of`, `^$`},
		{"exec -h", 0, `usage: crisp exec`, `^$`},
		{"", 0, `usage: crisp`, `^$`},
		{"frobnicate", 2, `^$`, `there is no command "frobnicate"`},
		{"get", 2, `^$`, `get what`},
		{"get nodes", 6, `^$`, `^crisp: agent is not reachable: dial unix .*agent.sock: connect: no such file`},
		{"get ingresses", 2, `^$`, `ingresses: there is no such kind`},
		{"get pods -o xml", 2, `^$`, `want wide, json, yaml, name`},
		{"get pods", 0, `^$`, `no pods`},
		{"get pods web", 3, `^$`, `^crisp: there is no pod web in namespace default\n$`},
		{"get pod/web -n prod", 3, `^$`, `no pod web in namespace prod`},
		{"get pods -o json", 0, `(?s)"items": \[\].*"kind": "List"`, `^$`},
		{"get pods -o yaml", 0, `items: \[\]`, `^$`},
		{"logs", 2, `^$`, `(?s)one pod.*usage: crisp logs POD`},
		{"logs web -l app=web", 2, `^$`, `one pod, or -l`},
		{"logs -l app=web", 3, `^$`, `there is no pod with app=web in namespace default`},
		{"logs deploy/web", 3, `^$`, `there is no pod of deployment/web in namespace default`},
		{"logs ingresses/web", 2, `^$`, `there is no such kind`},
		{"get pods --sort-by .a[", 2, `^$`, `--sort-by`},
		{"get pods -l !!", 2, `^$`, `-l !!: `},
		{"delete --all", 6, `^$`, `agent is not reachable`},
		{"delete", 2, `^$`, `delete takes what to delete`},
		{"wait", 2, `^$`, `the pods to wait for`},
		{"restart", 2, `^$`, `the names of pods`},
		{"ps -q", 0, `^$`, `^$`},
		{"logs web", 3, `^$`, `there is no pod web`},
		{"logs web --tail x", 2, `^$`, `invalid argument "x" for "--tail" flag`},
		{"exec web ls -l", 125, `^$`, `there is no pod web`},
		{"exec web", 2, `^$`, `exec takes`},
		{"exec web -- ls -l", 125, `^$`, `there is no pod web`},
		{"image load", 2, `^$`, `load, which needs -i FILE`},
		{"image prune", 0, `^$`, `^$`},
		{"image load -i " + broken, 1, `^$`, `^crisp: load .*: .*crisp.v1.Loader`},
		{"pull example.org/x:1", 0, `example.org/x:1`, `^$`},
		{"images", 0, `(?m)^IMAGE +ID +SIZE$`, `^$`},
		{"rmi example.org/none:1", 3, `^$`, `there is no image example.org/none:1`},
		{"validate -f " + broken, 4, `^$`, `broken.yaml:6: spec.containers\[0\].nam: unknown field`},
		{"version", 0, `(?s)crisp .*runtime +fakeRuntime .*CRI 0.1.0`, `^$`},
		{"version -o json", 0, `"runtime": "fakeRuntime"`, `^$`},
		{"--runtime-endpoint unix:///nowhere get pods", 6, `^$`, `^crisp: runtime is not reachable: dial unix /nowhere: connect: no such file`},
	} {
		t.Run(test.line, func(t *testing.T) {
			stdout, stderr, code := n.crisp(test.line)
			if code != test.code {
				t.Errorf("code %d, want %d", code, test.code)
			}
			if !regexp.MustCompile(test.stdout).MatchString(stdout) {
				t.Errorf("stdout\n%s\nwant %s", stdout, test.stdout)
			}
			if !regexp.MustCompile(test.stderr).MatchString(stderr) {
				t.Errorf("stderr\n%s\nwant %s", stderr, test.stderr)
			}
		})
	}
}

// Flags may be anywhere before "--", and short ones may be joined.
func TestParse(t *testing.T) {
	for _, test := range []struct{ line, want string }{
		{"", "i=false t=false c= [] behind []"},
		{"web -it", "i=true t=true c= [web] behind []"},
		{"-ti web -c app", "i=true t=true c=app [web] behind []"},
		{"-i -c=app web x", "i=true t=false c=app [web x] behind []"},
		{"--container app web -- -i x", "i=false t=false c=app [web] behind [-i x]"},
		{"-i -- web", "i=true t=false c= [] behind [web]"},
		{"web -", "i=false t=false c= [web -] behind []"},
		{"-ix web", "unknown shorthand flag: 'x' in -x"},
	} {
		var interactive, tty bool
		var name, got string
		cmd := &cobra.Command{Use: "test", SilenceErrors: true, SilenceUsage: true}
		streamFlags(cmd.Flags(), &interactive, &tty, "", "")
		containerFlag(cmd.Flags(), &name)
		cmd.RunE = func(_ *cobra.Command, args []string) error {
			before, behind := behindDash(cmd, args)
			got = fmt.Sprintf("i=%v t=%v c=%s %v behind %v", interactive, tty, name, before, behind)
			return nil
		}
		cmd.SetArgs(strings.Fields(test.line))
		if err := cmd.Execute(); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%q: %s, want %s", test.line, got, test.want)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for _, test := range []struct {
		err  error
		code int
		text string
	}{
		{utilexec.CodeExitError{Err: errors.New("exited"), Code: 7}, 7, ""},
		{errors.New(`exec: "x": executable file not found in $PATH`), 127, `exec: "x": executable file not found in $PATH`},
		{errors.New(`Internal error occurred: exec: "/etc/passwd": permission denied`), 126, `exec: "/etc/passwd": permission denied`},
		{fault.Unavailable.Errorf("runtime is not reachable"), 125, "runtime is not reachable"},
	} {
		err := execError(test.err)
		if got := exitCode(err); got != test.code || err.Error() != test.text {
			t.Errorf("%v: %d %q, want %d %q", test.err, got, err, test.code, test.text)
		}
	}
}

func TestStatusWord(t *testing.T) {
	waiting := func(reason string) v1.ContainerState {
		return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
	}
	ended := func(code int32, reason string) v1.ContainerState {
		return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code, Reason: reason}}
	}
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	for _, test := range []struct {
		want             string
		phase            v1.PodPhase
		init, containers []v1.ContainerState
		deleted          bool
	}{
		{want: "Running", phase: v1.PodRunning, containers: []v1.ContainerState{running, running}},
		{want: "Terminating", phase: v1.PodRunning, containers: []v1.ContainerState{running}, deleted: true},
		{want: "CrashLoopBackOff", phase: v1.PodRunning, containers: []v1.ContainerState{running, waiting("CrashLoopBackOff")}},
		{want: "Completed", phase: v1.PodSucceeded, containers: []v1.ContainerState{ended(0, "Completed")}},
		{want: "NotReady", phase: v1.PodRunning, containers: []v1.ContainerState{ended(0, "Completed"), running}},
		{want: "ExitCode:3", phase: v1.PodFailed, containers: []v1.ContainerState{ended(3, "")}},
		{want: "Init:1/2", phase: v1.PodPending, init: []v1.ContainerState{ended(0, "Completed"), running}, containers: []v1.ContainerState{waiting("PodInitializing")}},
		{want: "Init:Error", phase: v1.PodFailed, init: []v1.ContainerState{ended(1, "Error")}, containers: []v1.ContainerState{waiting("PodInitializing")}},
		{want: "Init:ImagePullBackOff", phase: v1.PodPending, init: []v1.ContainerState{waiting("ImagePullBackOff")}},
	} {
		pod := &v1.Pod{Status: v1.PodStatus{Phase: test.phase}}
		for _, s := range test.init {
			pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, v1.ContainerStatus{State: s})
		}
		for _, s := range test.containers {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, v1.ContainerStatus{State: s, Ready: s.Running != nil})
		}
		if test.deleted {
			pod.DeletionTimestamp = &metav1.Time{}
		}
		if got := status.Word(pod); got != test.want {
			t.Errorf("got %s, want %s", got, test.want)
		}
	}
}
