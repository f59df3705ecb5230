package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A pod that this node cannot run is shown with the reason, also after a restart of the agent,
// until its manifest is removed.
func TestRejectedPod(t *testing.T) {
	n := newCalls(t)
	n.begin()
	n.manifest("huge.yaml", strings.Replace(webPod, "name: app,", "name: app, resources: {requests: {cpu: 1000}},", 1))
	stop := n.agent()
	n.until("get pods", `web +0/\d +OutOfcpu +0 `)
	stop()
	n.agent()
	n.until("get pods", `web +0/\d +OutOfcpu +0 `)
	n.until("describe web", `(?s)Reason: +OutOfcpu.*Message: +Pod was rejected: Node didn't have enough resource: cpu, requested: 1000000, `)
	n.until("events --for pod/web", `Warning +OutOfcpu +pod/web +Pod was rejected: Node didn't have enough resource: cpu`)
	if made := n.made("Run", "Create", "Pull"); len(made) > 0 {
		t.Errorf("it was given %q", made)
	}
	n.manifest("huge.yaml", "")
	n.until("get pods -o name", `^$`)
}

// A pod that did not fit starts as soon as there is room, without a restart of the agent.
func TestRejectedPodFitsLater(t *testing.T) {
	inRealTime(t)
	n := newCalls(t)
	n.begin()
	n.flags = []string{"--max-pods", "1"}
	n.manifest("first.yaml", "{apiVersion: v1, kind: Pod, metadata: {name: first}, spec: {containers: [{name: a, image: i}]}}")
	n.agent()
	n.until("get pods", `first +1/1 +Running `)
	n.manifest("web.yaml", webPod)
	n.until("get pods", `web +0/\d +OutOfpods +0 `)
	n.manifest("first.yaml", "")
	n.until("get pods", `web +2/2 +Running `)
	n.expect(expectation{"get pods -o name", 0, `^pod/web\s*$`})
}

// A pod that needs what this node forbids is rejected at once, before any call of the runtime.
func TestForbidden(t *testing.T) {
	n := newCalls(t)
	n.begin()
	n.flags = []string{"--allow-privileged=false"}
	for name, context := range map[string]string{"mighty": "privileged: true", "unmasked": "procMount: Unmasked"} {
		n.manifest(name+".yaml", "{apiVersion: v1, kind: Pod, metadata: {name: "+name+"}, spec: {containers: [{name: a, image: i, securityContext: {"+context+"}}]}}")
	}
	n.agent()
	n.until("get pods", `(?s)mighty +0/\d +PrivilegedForbidden .*unmasked +0/\d +ProcMountForbidden `)
	n.expect(
		expectation{"get pod mighty -o jsonpath={.status.phase}", 0, `^Failed$`},
		expectation{"describe unmasked", 0, `(?s)Reason: +ProcMountForbidden.*Message: +\S`},
	)
	if made := n.made("Run", "Create", "Pull"); len(made) > 0 {
		t.Errorf("they were given %q", made)
	}
}

// A pod whose AppArmor profile is not loaded waits, with the reason. The runtime, which would
// reject it, is not called.
func TestAppArmorProfile(t *testing.T) {
	n := newCalls(t)
	n.begin()
	n.manifest("web.yaml", strings.Replace(webPod, "spec:\n", "spec:\n  securityContext: {appArmorProfile: {type: Localhost, localhostProfile: crisp-no-such-profile}}\n", 1))
	n.agent()
	n.until("get pods", `web +0/2 +AppArmor +0 `)
	n.expect(
		expectation{"get pod web -o jsonpath={.status.phase}", 0, `^Pending$`},
		expectation{"events --for pod/web", 0, `Warning +AppArmor +pod/web +.*Cannot enforce AppArmor: `},
		expectation{"describe web", 0, `AppArmor`},
	)
	if made := n.made("RunPodSandbox", "CreateContainer"); len(made) > 0 {
		t.Errorf("the runtime was asked: %q", made)
	}
}

// A container that cannot be configured has the reason in its status, and starts as soon as the
// missing object exists.
func TestWhyContainerWaits(t *testing.T) {
	n := newNode(t)
	n.manifest("web.yaml", strings.Replace(webPod, "name: app,", "name: app, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: a}}}],", 1))
	n.agent()
	n.until("get pods", `web +1/2 +CreateContainerConfigError +0 `)
	n.expect(expectation{"get pod web -o jsonpath={.status.containerStatuses[0].state.waiting.message}", 0, `env A: there is no secret default/s`})
	n.manifest("s.yaml", "{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {a: b}}")
	n.until("get pods", `web +2/2 +Running +0 `)
}

// The output for programs is a complete v1.Pod, with all that a kubelet reports.
func TestPodIsAPod(t *testing.T) {
	n := newNode(t)
	n.manifest("web.yaml", webPod)
	n.agent()
	n.until("get pods", `web +2/2 `)
	out, _, _ := n.crisp("get pod web -o json")
	var pod v1.Pod
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(&pod); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s := pod.Status
	var conditions []string
	for _, c := range s.Conditions {
		if c.LastTransitionTime.IsZero() {
			t.Errorf("condition without a time: %+v", c)
		}
		conditions = append(conditions, string(c.Type)+"="+string(c.Status))
	}
	slices.Sort(conditions)
	if got, want := strings.Join(conditions, " "), "ContainersReady=True Initialized=True PodReadyToStartContainers=True PodScheduled=True Ready=True"; got != want {
		t.Errorf("conditions %s, want %s", got, want)
	}
	if s.Phase != v1.PodRunning || s.HostIP != "192.0.2.1" || len(s.HostIPs) != 1 || s.PodIP != "192.168.192.168" || s.StartTime.IsZero() || s.QOSClass != v1.PodQOSBestEffort {
		t.Errorf("status %+v", s)
	}
	for _, c := range s.ContainerStatuses {
		if c.State.Running == nil || !c.Ready || c.Started == nil || !*c.Started || !strings.HasPrefix(c.ContainerID, "fakeRuntime://") || c.Image == "" {
			t.Errorf("container %+v", c)
		}
	}
}

// A new agent reports the same status as the old one.
func TestStatusIsKept(t *testing.T) {
	inRealTime(t)
	n := newNode(t)
	n.manifest("job.yaml", strings.Replace(strings.Replace(webPod, "name: web}", "name: job}", 1), "spec:\n", "spec:\n  restartPolicy: Never\n", 1))
	stop := n.agent()
	n.until("get pods", `job +2/2 `)
	n.exit(0)
	n.until("get pods", `job +0/2 `)
	n.manifest("web.yaml", webPod)
	n.until("get pods", `web +2/2 `)
	n.exit(3)
	n.until("get pods", `web +2/2 +Running +2 `)
	const fields = `jsonpath={.status.phase} {.status.startTime} {.status.containerStatuses[*].restartCount} {.status.containerStatuses[*].lastState.terminated.exitCode} {.status.containerStatuses[*].state.terminated.finishedAt} {.status.conditions[*].lastTransitionTime}`
	statuses := func() (reported []string) {
		for _, name := range []string{"job", "web"} {
			// A single argument with blanks, which n.crisp would split.
			var out, errs bytes.Buffer
			if code := run(t.Context(), []string{"--runtime-endpoint", n.socket, "get", "pod", name, "-o", fields}, strings.NewReader(""), &out, &errs); code != exitOK {
				t.Fatal(errs.String())
			}
			reported = append(reported, out.String())
		}
		return reported
	}
	before := statuses()
	if !strings.HasPrefix(before[0], "Succeeded 2") || !strings.HasPrefix(before[1], "Running 2") {
		t.Fatalf("reported %q", before)
	}
	stop()
	n.agent()
	n.until("status -o json", `"health": "ok"`)
	n.until("get pods", `web +2/2 +Running +2 `)
	if after := statuses(); !slices.Equal(after, before) {
		t.Errorf("the new agent tells %q, the old one %q", after, before)
	}
}

// The node's capacity is the machine's.
func TestNodeCapacity(t *testing.T) {
	n := newNode(t)
	n.agent()
	n.until("status -o json", `"alive": true`)
	out, _, _ := n.crisp("status -o json")
	var shown struct{ Node v1.NodeStatus }
	if err := json.Unmarshal([]byte(out), &shown); err != nil {
		t.Fatal(err)
	}
	nproc, err := exec.CommandContext(t.Context(), "nproc").Output()
	if err != nil {
		t.Fatal(err)
	}
	if cpus, want := shown.Node.Capacity.Cpu().String(), strings.TrimSpace(string(nproc)); cpus != want {
		t.Errorf("%s CPUs, nproc says %s", cpus, want)
	}
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	total := ""
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemTotal:"); ok {
			total = strings.ReplaceAll(strings.TrimSpace(rest), " kB", "Ki")
		}
	}
	if want := resource.MustParse(total); shown.Node.Capacity.Memory().Cmp(want) != 0 {
		t.Errorf("memory %s, MemTotal is %s", shown.Node.Capacity.Memory(), total)
	}
}

// images, pull and rmi agree with what other clients see through CRI.
func TestImages(t *testing.T) {
	n := newNode(t)
	agree := func(want ...string) {
		t.Helper()
		list, err := n.runtime.ImageService.ListImages(t.Context(), &cri.ImageFilter{})
		if err != nil {
			t.Fatal(err)
		}
		var runtime, shown []string
		for _, image := range list {
			runtime = append(runtime, image.RepoTags...)
		}
		out, _, _ := n.crisp("images")
		for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
			if i > 0 {
				shown = append(shown, strings.Fields(line)[0])
			}
		}
		slices.Sort(runtime)
		slices.Sort(shown)
		if !slices.Equal(runtime, want) || !slices.Equal(shown, want) {
			t.Errorf("the runtime has %q, images shows %q, want %q", runtime, shown, want)
		}
	}
	agree()
	n.expect(expectation{"pull example.org/b:1", 0, `example.org/b:1`}, expectation{"pull example.org/a:1", 0, `example.org/a:1`})
	agree("example.org/a:1", "example.org/b:1")
	n.expect(expectation{"rmi example.org/b:1", 0, `example.org/b:1`})
	agree("example.org/a:1")
}
