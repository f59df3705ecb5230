package test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/test/testenv"
)

// The pod uses this machine's tar and its libraries.
const commandsStack = `apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {password: geheim}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: IMAGE
    args: [print, hello, sleep, for-ever]
    env: [{name: PATH, value: /usr/bin}]
    resources: {limits: {memory: 64Mi}}
    volumeMounts:
    - {name: d, mountPath: /d}
%s  - {name: ear, image: IMAGE, stdin: true, stdinOnce: true, args: [echo-stdin]}
  volumes:
  - {name: d, emptyDir: {}}
%s`

// The command line shows a pod and the node, and carries data in and out, with a real
// runtime. The life cycles of agents and pods are in other tests.
func TestAgentCommands(t *testing.T) {
	a := startCgroupLab(t).agentProcess
	if err := a.n.useRegistry(newRegistry()); err != nil {
		t.Fatal(err)
	}
	a.until(func() bool { _, code := a.crisp("", "get", "nodes"); return code == 0 }, "the agent answers")

	// Before the first pod, too: crispd will turn on forwarding.
	const doctor = `(?s)^runtime +ok\nRuntimeReady +ok\nNetworkReady +ok\nagent +ok\ncgroups +ok\nnft +ok\nforwarding +ok\n$`
	a.says(0, doctor, "doctor")

	var mounts, volumes string
	for i, dir := range []string{"/usr", "/lib", "/lib64"} {
		if testenv.Exists(dir) {
			mounts += fmt.Sprintf("    - {name: h%d, mountPath: %s, readOnly: true}\n", i, dir)
			volumes += fmt.Sprintf("  - {name: h%d, hostPath: {path: %s}}\n", i, dir)
		}
	}
	stack := a.file("stack.yaml", fmt.Sprintf(commandsStack, mounts, volumes))
	a.says(0, `pod default/web is valid`, "validate", "-f", stack)
	a.says(0, `pod/web created`, "apply", "-f", stack, "--wait")

	aboutNode(t, a, doctor)
	aboutPod(t, a)
	copies(t, a)
	streams(t, a)
	imagesCome(t, a)

	a.says(0, `pod/web deleted`, "delete", "pod/web", "--grace-period", "0")
	a.says(0, `no pods`, "get", "pods")
	a.says(0, `secret/key deleted`, "delete", "secret/key")
}

// aboutNode checks the commands that need no pod.
func aboutNode(t *testing.T, a *agentProcess, doctor string) {
	a.says(0, `^crisp +\S+\nruntime +crisp \S+ \(CRI v1\)\n$`, "version")
	a.says(0, `(?s)^agent +\S+/agent\.sock: ok\nruntime +crisp \S+ at unix://.*RuntimeReady=true.*NetworkReady=true.*handlers +\(default\).*allocatable +\d.* memory, \d+ pods, \S+iB ephemeral-storage.*node +Ready=True.*source file +0 manifests`, "status")
	a.says(0, `(?s)"alive": true.*"name": "crisp"`, "status", "-o", "json")
	a.says(0, `(?m)^containerRuntimeEndpoint: unix://`+regexp.QuoteMeta(a.n.socket)+`$`, "config", "view")
	a.says(0, `(?m)^ExecStart=\S+/crisp --runtime-endpoint unix://`+regexp.QuoteMeta(a.n.socket)+` agent --manifests /srv/pods --root \S+$`, "generate", "systemd", "--manifests", "/srv/pods")
	a.says(0, doctor, "doctor")

	// A broken manifest is reported where users look.
	a.n.expects("manifest rejected.*broken.yaml")
	broken := filepath.Join(a.manifests, "broken.yaml")
	if err := os.WriteFile(broken, []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{nam: c}]}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	a.until(func() bool {
		out, _ := a.crisp("", "sources")
		return regexp.MustCompile(`file +` + regexp.QuoteMeta(broken) + ` .*nam`).MatchString(out)
	}, "the broken manifest is known")
	a.says(1, `(?m)^manifest .*nam`, "doctor")
	a.says(0, `crisp: broken manifest: .*broken\.yaml:4: .*nam`, "get", "pods")
	a.says(0, `1 manifests, 1 of them broken`, "status")
	a.says(4, `nam`, "validate", "-f", broken)
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	a.until(func() bool { out, _ := a.crisp("", "sources"); return !strings.Contains(out, broken) }, "it is forgotten")
}

// aboutPod checks the commands that describe a pod.
func aboutPod(t *testing.T, a *agentProcess) {
	a.says(0, `(?s)^Name: +web\n.*Labels: +app=web\n.*Status: +Running\n.*\n  app:\n.*Args: +print hello.*memory limit 64Mi.*State: +running since.*Ready: +true.*Mount: +/d from d\n.*Conditions:\n.*Ready +True.*\n  d +empty directory\n.*Events:\n.*Started`, "describe", "pod/web")
	out, code := a.crisp("", "describe", "secret/key")
	if code != 0 || !strings.Contains(out, "password: 8 bytes of base64") || strings.Contains(out, "Z2VoZWlt") {
		t.Errorf("describe secret/key: code %d\n%s", code, out)
	}
	a.says(3, `no pod other in namespace default`, "describe", "pod/other")
	if testenv.Lacks("criu") == "" {
		archive, code := a.crisp("", "checkpoint", "web", "-c", "app")
		if info, err := os.Stat(strings.TrimSpace(archive)); code != 0 || err != nil || info.Size() == 0 {
			t.Errorf("checkpoint: code %d, %q: %v", code, archive, err)
		}
	} else {
		a.says(1, `(?i)criu`, "checkpoint", "web", "-c", "app")
	}
}

// copies copies a directory into a container, and out again.
func copies(t *testing.T, a *agentProcess) {
	from, to := filepath.Join(a.n.dir, "from"), filepath.Join(a.n.dir, "to")
	if err := os.MkdirAll(filepath.Join(from, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(from, "sub", "f"), []byte("content\n"), 0o750); err != nil {
		t.Fatal(err)
	}
	a.says(0, `^$`, "cp", "-c", "app", from, "web:/d/copy")
	a.says(0, `^content\n$`, "exec", "web", "-c", "app", "--", "/testbin", "cat", "/d/copy/sub/f")
	a.says(0, `^$`, "cp", "-c", "app", "web:/d/copy", to)
	data, err := os.ReadFile(filepath.Join(to, "sub", "f"))
	info, statErr := os.Stat(filepath.Join(to, "sub", "f"))
	if err != nil || statErr != nil || string(data) != "content\n" || info.Mode().Perm() != 0o750 {
		t.Errorf("the copied file is %q, %v (%v, %v)", data, info, err, statErr)
	}
	a.says(1, `(?s)No such file.*exit code 2`, "cp", "-c", "app", "web:/d/none", to)
}

// streams attaches to a container that ends with its input, and to one that is added to the pod. A
// container that is not running rejects attach, exec and copy.
func streams(t *testing.T, a *agentProcess) {
	if out, code := a.crisp("ping", "attach", "-i", "web", "-c", "ear"); out != "ping" || code != 0 {
		t.Errorf("attach -i: %q, code %d", out, code)
	}
	a.until(func() bool {
		out, _ := a.crisp("", "describe", "web")
		return strings.Contains(out, "ended with code 0")
	}, "the container has ended with its input")
	const gone = `^crisp: container ear of pod web is not running: exited with code 0\n$`
	a.says(125, gone, "attach", "web", "-c", "ear")
	a.says(125, gone, "exec", "web", "-c", "ear", "--", "/testbin")
	a.says(1, gone, "cp", "-c", "ear", "web:/testbin", filepath.Join(a.n.dir, "copy"))
	if out, code := a.crisp("pong", "debug", "web", "-i", "--image", testImage, "--pull", "Never", "-c", "d", "--", "/testbin", "echo-stdin"); out != "pong" || code != 0 {
		t.Errorf("debug -i: %q, code %d", out, code)
	}
}

// imagesCome pulls, lists and removes an image.
func imagesCome(t *testing.T, a *agentProcess) {
	image, err := bigImage(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.n.push("app:latest", image); err != nil {
		t.Fatal(err)
	}
	ref := a.n.registry.host() + "/app:latest"
	a.says(0, `sha256:[0-9a-f]{64}\n$`, "pull", ref)
	a.says(0, `(?m)^`+regexp.QuoteMeta(ref)+` +[0-9a-f]+ +1(\.\d)?MB$`, "images")
	a.says(0, `^`+regexp.QuoteMeta(ref)+`\n$`, "rmi", ref)
	a.says(3, `there is no image `+regexp.QuoteMeta(ref), "rmi", ref)
	a.says(0, `sha256:`, "pull", ref)
	a.says(0, `^`+regexp.QuoteMeta(ref)+`\n$`, "image", "prune") // but not the image in use
	a.says(0, `(?s)^IMAGE +ID +SIZE\n`+regexp.QuoteMeta(testImage)+` [^\n]+\n$`, "images")
	a.says(3, `^crisp: pull \S+/none:latest: reading `, "pull", a.n.registry.host()+"/none:latest")
}
