package test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"

	"github.com/crisp-cri/crisp/test/testenv"
)

const localStack = `apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {mode: fast}
---
apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {password: geheim}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: IMAGE
    args: [env, MODE, env, K_password, env, TEXT, http, ":80", hello, count, "5", 50ms, sleep, for-ever]
    envFrom: [{secretRef: {name: key}, prefix: K_}]
    env:
    - {name: MODE, valueFrom: {configMapKeyRef: {name: conf, key: mode}}}
    - {name: TEXT, value: "$(MODE)-$(K_password)"}
  - {name: ear, image: IMAGE, stdin: true, args: [echo-stdin, sleep, for-ever]}
`

// What kubectl and other tools request by HTTP. It is in Go because the answers are SPDY
// and WebSocket streams, JSON, and numbers that grow; scripts test the command line.
func TestAgentHTTP(t *testing.T) {
	address, health := testenv.FreePort(t), testenv.FreePort(t)
	l := startLab(t, "--listen", address, "--healthz-address", health)
	l.until(func() bool { _, code := l.agentProcess.crisp("", "get", "nodes"); return code == 0 }, "the agent answers")
	l.says(0, `pod/web created`, "apply", "-f", l.file("stack.yaml", localStack), "--wait")
	l.until(func() bool {
		out, _ := l.agentProcess.crisp("", "logs", "web", "-c", "app")
		return strings.HasSuffix(out, "\n4\n")
	}, "the container has counted")
	throughAPI(t, l.agentProcess, address)
	for _, path := range []string{"/healthz", "/healthz/ping", "/healthz/log", "/healthz/syncloop"} {
		resp, err := http.Head("http://" + health + path)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("HEAD %s: %v, %v", path, resp, err)
		}
	}
	l.says(0, `pod/web deleted`, "delete", "-f", filepath.Join(l.n.dir, "stack.yaml"))
}

// throughAPI sends HTTP requests to the agent, as kubectl and monitoring tools do.
func throughAPI(t *testing.T, a *agentProcess, address string) {
	token, err := os.ReadFile(filepath.Join(a.n.dir, "agent", "token"))
	if err != nil {
		t.Fatal(err)
	}
	get := func(path, token string) (string, int) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body), resp.StatusCode
	}
	if _, code := get("/pods", "wrong"); code != http.StatusUnauthorized {
		t.Errorf("without the token: %d", code)
	}
	for path, want := range map[string]string{
		"/api": `"versions":\["v1"\]`, "/apis": `"name":"apps"`, "/api/v1": `"name":"pods/exec"`,
		"/pods": `"phase":"Running"`, "/runningpods/": `"name":"web"`, "/configz": `"staticPodPath":`,
		"/api/v1/namespaces/default/pods/web/log?container=app&tailLines=1": `^4\n$`,
		"/containerLogs/default/web/app?limitBytes=4":                       `^fast$`,
		"/api/v1/pods?labelSelector=a%3Db":                                  `"items":\[\]`,
		"/api/v1/nodes":                                                     `"Ready"`,
		"/metrics":                                                          `(?ms)^kubelet_running_pods 1$.*^kubelet_runtime_operations_total\{operation_type="run_podsandbox"\} 1$`,
		"/metrics/resource":                                                 `(?ms)^container_cpu_usage_seconds_total\{container="app",namespace="default",pod="web"\} \d+\.\d+$.*^container_memory_working_set_bytes\{container="app",.*^node_memory_working_set_bytes \d.*^pod_memory_working_set_bytes.*^resource_scrape_error 0$`,
		"/metrics/cadvisor":                                                 `(?m)^container_memory_working_set_bytes\{.*pod="web".*\} [0-9.e+]+$`, // without a timestamp
		"/stats/summary":                                                    `"podRef":\{"name":"web","namespace":"default"`,
	} {
		if body, code := get(path, string(token)); code != http.StatusOK || !regexp.MustCompile(want).MatchString(body) {
			t.Errorf("GET %s: %d %.2000s\nwant %s", path, code, body, want)
		}
	}
	// Counters only grow, and everything that runs has used CPU time.
	used := func() float64 {
		t.Helper()
		body, _ := get("/metrics/resource", string(token))
		m := regexp.MustCompile(`container_cpu_usage_seconds_total\{container="app",[^}]*\} (\S+)`).FindStringSubmatch(body)
		if m == nil {
			t.Fatalf("no CPU time in\n%s", body)
		}
		seconds, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return seconds
	}
	first := used()
	a.says(0, ``, "exec", "web", "-c", "app", "--", "/testbin", "eat", "16")
	a.until(func() bool { return used() > first }, "more CPU time was used")
	if again := used(); first <= 0 || again < first {
		t.Errorf("CPU time %v, then %v", first, again)
	}
	var summary struct {
		Pods []struct {
			Containers []struct {
				Name   string
				CPU    struct{ UsageCoreNanoSeconds uint64 }
				Memory struct{ WorkingSetBytes uint64 }
			}
		}
	}
	body, _ := get("/stats/summary", string(token))
	if err := json.Unmarshal([]byte(body), &summary); err != nil || len(summary.Pods) != 1 || len(summary.Pods[0].Containers) < 2 {
		t.Fatalf("/stats/summary: %v\n%s", err, body)
	}
	for _, c := range summary.Pods[0].Containers {
		if c.CPU.UsageCoreNanoSeconds == 0 || c.Memory.WorkingSetBytes == 0 {
			t.Errorf("/stats/summary: %+v", c)
		}
	}

	var pods v1.PodList
	body, _ = get("/pods", string(token))
	if err := json.Unmarshal([]byte(body), &pods); err != nil || len(pods.Items) != 1 || pods.Items[0].Status.PodIP == "" {
		t.Errorf("/pods: %v, %d pods", err, len(pods.Items))
	}
	run, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/run/default/web/app?cmd=/testbin+print+ran", nil)
	if err != nil {
		t.Fatal(err)
	}
	run.Header.Set("Authorization", "Bearer "+string(token))
	if resp, err := http.DefaultClient.Do(run); err != nil {
		t.Error(err)
	} else if data, err := io.ReadAll(resp.Body); err != nil || string(data) != "ran\n" {
		t.Errorf("/run: %q, %v", data, err)
	}

	config := &rest.Config{Host: "http://" + address, BearerToken: string(token)}
	const query = "?container=app&stdout=true&stderr=true&command=/testbin&command=print&command=out&command=eprint&command=err&command=exit&command=5"
	for name, path := range map[string]string{"kube": "/api/v1/namespaces/default/pods/web/exec" + query, "kubelet": "/exec/default/web/app" + query} {
		client := rest.CopyConfig(config)
		parsed, err := url.Parse("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		spdy, err := remotecommand.NewSPDYExecutor(client, "POST", parsed)
		if err != nil {
			t.Fatal(err)
		}
		socket, err := remotecommand.NewWebSocketExecutor(client, "GET", "http://"+address+path)
		if err != nil {
			t.Fatal(err)
		}
		for protocol, e := range map[string]remotecommand.Executor{"SPDY": spdy, "WebSocket": socket} {
			var out, errOut bytes.Buffer
			err := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out, Stderr: &errOut})
			code, ok := errors.AsType[utilexec.ExitError](err)
			if got := fmt.Sprintf("%q %q", out.String(), errOut.String()); got != `"out\n" "err\n"` || !ok || code.ExitStatus() != 5 {
				t.Errorf("exec by %s at the path of %s: %s, %v", protocol, name, got, err)
			}
		}
	}
}

// A pod of "crisp run" ends with its container. The command line has the container's input, output
// and exit code.
func TestAgentRun(t *testing.T) {
	n, _ := startNode(t)
	manifests := filepath.Join(n.dir, "manifests")
	if err := os.Mkdir(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	a := &agentProcess{t: t, n: n, manifests: manifests}
	a.start()
	defer func() { a.end(syscall.SIGTERM) }()
	a.until(func() bool { _, code := a.crisp("", "get", "nodes"); return code == 0 }, "the agent answers")

	a.says(3, `^hi\n$`, "run", "--rm", "--pull", "Never", testImage, "--", "print", "hi", "exit", "3")
	if out, code := a.crisp("ping", "run", "--rm", "-i", "--pull", "Never", testImage, "--", "echo-stdin"); out != "ping" || code != 0 {
		t.Errorf("run -i: %q, code %d", out, code)
	}
	a.says(0, `no pods`, "get", "pods")

	a.says(0, `^pod/ear created\n$`, "run", "--name", "ear", "--pull", "Never", "-e", "A=b", "-l", "x=y", testImage, "--", "env", "A", "sleep", "for-ever")
	a.says(0, `Ready`, "wait", "pod/ear")
	a.until(func() bool { out, _ := a.crisp("", "logs", "ear"); return out == "b\n" }, "the container has said what it has in its environment")
	a.says(0, `^pod/ear\n$`, "get", "pods", "-l", "x=y", "-o", "name")
	// Its export creates it again.
	out, code := a.crisp("", "export", "pod/ear")
	if code != 0 {
		t.Fatalf("export: %s", out)
	}
	a.says(0, `pod/ear deleted`, "delete", "ear", "--grace-period", "0")
	a.until(func() bool { out, _ := a.crisp("", "get", "pods"); return strings.Contains(out, "no pods") }, "nothing is left of it")
	a.says(0, `pod/ear created`, "apply", "--wait", "-f", a.file("ear.yaml", out))
	a.says(0, `pod/ear deleted`, "delete", "ear", "--grace-period", "1")
}

// An interrupt of "crisp run" ends its pod. A second one ends the command at once, and the pod
// still ends.
func TestAgentRunInterrupted(t *testing.T) {
	l := startLab(t)
	a, n := l.agentProcess, l.n
	a.until(func() bool { _, code := a.crisp("", "get", "nodes"); return code == 0 }, "the agent answers")
	cmd := exec.Command(filepath.Join(n.binaries.dir, "crisp"), "run", "--rm", "--name", "x", "--pull", "Never", testImage, "--", "ignore-term", "print", "deaf", "sleep", "for-ever")
	cmd.Env = append(os.Environ(), "CRISP_AGENT_ROOT="+filepath.Join(n.dir, "agent"), "CRISP_RUNTIME_ENDPOINT=unix://"+n.socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	interrupt := func() {
		t.Helper()
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
	}
	a.until(func() bool { out, _ := a.crisp("", "logs", "x"); return strings.Contains(out, "deaf") }, "the container runs")
	interrupt()
	a.until(func() bool { out, _ := a.crisp("", "get", "pods"); return strings.Contains(out, "Terminating") }, "the pod is being ended")
	interrupt()
	err := cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGINT {
		t.Errorf("the second interrupt did not end the command: %v", err)
	}
	a.until(func() bool { out, _ := a.crisp("", "get", "pods"); return strings.Contains(out, "no pods") }, "the pod is gone")
}
