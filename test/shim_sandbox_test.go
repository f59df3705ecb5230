package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/shimtest/behaviour"
	"github.com/crisp-cri/crisp/test/testenv"
)

// ready reports whether a pod is.
func (d *dialect) ready(pod string) bool {
	d.t.Helper()
	s, err := d.runtime().PodSandboxStatus(d.ctx(), &cri.PodSandboxStatusRequest{PodSandboxId: d.ids[pod]})
	if err != nil {
		d.t.Fatal(err)
	}
	return s.Status.State == cri.PodSandboxState_SANDBOX_READY
}

// awaitEnd waits until a pod is not ready.
func (d *dialect) awaitEnd(pod string) {
	d.t.Helper()
	for deadline := time.Now().Add(time.Minute); d.ready(pod); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			d.t.Fatalf("pod %s stays ready", pod)
		}
	}
}

// removePod stops and removes a pod.
func (d *dialect) removePod(pod string) {
	d.t.Helper()
	if _, err := d.runtime().StopPodSandbox(d.ctx(), &cri.StopPodSandboxRequest{PodSandboxId: d.ids[pod]}); err != nil {
		d.t.Fatal(err)
	}
	if _, err := d.runtime().RemovePodSandbox(d.ctx(), &cri.RemovePodSandboxRequest{PodSandboxId: d.ids[pod]}); err != nil {
		d.t.Fatal(err)
	}
}

// machine returns the process that the shim of tests has in place of a pod's virtual machine.
func (d *dialect) machine(pod string) int {
	d.t.Helper()
	pid, err := strconv.Atoi(string(read(d.t, filepath.Join(d.bundleOf(d.ids[pod]), "shimtest.pid"))))
	if err != nil {
		d.t.Fatal(err)
	}
	return pid
}

const sandboxAPI = "sandboxer = \"shim\"\nannotations = [\"io.katacontainers.*\"]\n"

// A shim that serves the Sandbox API, as Kata's in Rust does, makes the sandbox by it: from the pod's
// configuration, with the annotations that the handler lets through, and with no container of ours. The
// pod's containers are in it, also after both daemons were killed.
func TestSandboxAPI(t *testing.T) {
	testenv.Need(t, "shims")
	d := startDialect(t, behaviour.Behaviour{Version: 2, Answer: "address", Dialect: "kata", Sandbox: true, NoPids: true}, sandboxAPI)
	d.runPod("p", map[string]string{"io.katacontainers.config.hypervisor.default_vcpus": "2", "other.example.com": "x"})
	config := testbinIn("app", "print", "begun", "await", "/data/go", "print", "ended", "exit", "7")
	config.Mounts = []*cri.Mount{{HostPath: d.work, ContainerPath: "/data"}}
	app, err := d.run("p", config)
	if err != nil {
		t.Fatal(err)
	}
	beside, err := d.run("p", testbinIn("beside", "sleep", "for-ever"))
	if err != nil {
		t.Fatal(err)
	}
	stats, err := d.runtime().PodSandboxStats(d.ctx(), &cri.PodSandboxStatsRequest{PodSandboxId: d.ids["p"]})
	if err != nil {
		t.Fatal(err)
	}
	if s := stats.Stats.Linux; s.Memory.GetUsageBytes().GetValue() != 42<<20 || s.Process.GetProcessCount().GetValue() != 7 {
		t.Errorf("the sandbox's counters are %v", s)
	}
	d.kill()
	x, err := d.runtime().ExecSync(d.ctx(), &cri.ExecSyncRequest{ContainerId: beside, Cmd: []string{"/testbin", "print", "hello", "exit", "3"}})
	if err != nil || string(x.Stdout) != "hello\n" || x.ExitCode != 3 {
		t.Errorf("exec: %v (%v)", x, err)
	}
	if err := os.WriteFile(filepath.Join(d.work, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if s := d.exits(app); s.ExitCode != 7 || d.output("p", "app") != "begun\nended\n" || !d.ready("p") {
		t.Errorf("exit code %d, output %q, the pod is ready: %t", s.ExitCode, d.output("p", "app"), d.ready("p"))
	}
	d.asksForMachine()
	d.removePod("p")
	if len(d.asked("ShutdownSandbox", "sandbox")) != 1 || len(d.asked("StopSandbox", "sandbox")) == 0 {
		t.Error("the sandbox was not shut down once, after it was stopped")
	}
	// Whoever died with the machine ends, and so does the pod; the next one runs.
	d.expects("sandbox ended|shim|container")
	d.runPod("crash", nil)
	in, err := d.run("crash", testbinIn("in", "sleep", "for-ever"))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(d.machine("crash"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.awaitEnd("crash")
	if s := d.exits(in); s.ExitCode != 137 {
		t.Errorf("exit code %d", s.ExitCode)
	}
	d.removePod("crash")
	d.runPod("next", nil)
	d.removePod("next")
}

// asksForMachine checks what the shim was asked for the pod p.
func (d *dialect) asksForMachine() {
	d.t.Helper()
	made := d.asked("CreateSandbox", "sandbox")
	if len(made) != 1 || len(d.asked("Create", "sandbox")) != 0 || len(d.asked("start", "sandbox")) != 1 || len(d.asked("Create", "container")) != 2 {
		d.t.Fatalf("the shim was asked for the sandboxes %v and the containers %v", made, d.asked("Create", "container"))
	}
	text, _ := json.Marshal(made[0])
	for want, is := range map[string]bool{
		`runtime.v1.PodSandboxConfig`: true, `"io.katacontainers.config.hypervisor.default_vcpus":"2"`: true,
		`"io.kubernetes.cri.sandbox-id":"` + d.ids["p"]: true, `"netnsPath":"/`: true, `other.example.com`: false,
	} {
		if strings.Contains(string(text), want) != is {
			d.t.Errorf("whether it is asked for %s should be %t: %s", want, is, text)
		}
	}
	if _, err := os.Stat(filepath.Join(d.bundleOf(d.ids["p"]), "config.json")); !os.IsNotExist(err) {
		d.t.Errorf("the sandbox has a specification: %v", err)
	}
	if len(d.asked("Pids", "container")) == 0 {
		d.t.Error("the processes of containers without a number in their counters were not counted")
	}
}

// A shim that is killed, hangs in any call for a sandbox, fails in one or has none: its pod ends, with a
// reason that names it, and another one runs.
func TestSandboxAPIFails(t *testing.T) {
	testenv.Need(t, "shims")
	d := startDialect(t, behaviour.Behaviour{Sandbox: true}, sandboxAPI)
	again := func(t *testing.T) {
		t.Helper()
		d.t = t
		if err := d.Save(d.path); err != nil {
			t.Fatal(err)
		}
		name := "again-" + filepath.Base(t.Name())
		d.runPod(name, nil)
		d.removePod(name)
	}
	t.Run("killed", func(t *testing.T) {
		d.t = t
		d.expects("sandbox ended|shim|container")
		d.runPod("killed", nil)
		id, err := d.run("killed", testbinIn("c", "sleep", "for-ever"))
		if err != nil {
			t.Fatal(err)
		}
		links, err := filepath.Glob("/proc/[0-9]*/cwd")
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range links {
			if to, _ := os.Readlink(link); to == d.bundleOf(d.ids["killed"]) && strings.Contains(string(read(t, filepath.Dir(link)+"/cmdline")), "-address") {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(link)))
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
		}
		if s := d.exits(id); s.ExitCode != 137 || !strings.Contains(s.Message, d.path) {
			t.Errorf("the container ended with %v", s)
		}
		d.awaitEnd("killed")
		machine := d.machine("killed")
		d.removePod("killed")
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", machine)); err == nil && !strings.Contains(string(stat), ") Z ") {
			t.Errorf("what the shim has left still runs: %s", stat)
		}
		again(t)
	})
	for _, calls := range [][]string{{"StopSandbox"}, {"ShutdownSandbox"}, {"WaitSandbox"}, {"WaitSandbox", "SandboxStatus"}} {
		t.Run("hangs in "+strings.Join(calls, ","), func(t *testing.T) {
			d.t = t
			d.expects("shim|did not|container")
			name := strings.ToLower(strings.Join(calls, "-"))
			hangs := d.Behaviour
			hangs.Hang = calls
			if err := hangs.Save(d.path); err != nil {
				t.Fatal(err)
			}
			d.runPod(name, nil)
			if _, err := d.run(name, testbinIn("c", "sleep", "for-ever")); err != nil {
				t.Fatal(err)
			}
			d.removePod(name)
			again(t)
		})
	}
	for call, text := range map[string]string{"CreateSandbox": "no memory", "StartSandbox": "no machine"} {
		t.Run("fails in "+call, func(t *testing.T) {
			d.t = t
			d.expects("shim|container")
			fails := d.Behaviour
			fails.Fail = map[string]string{call: "Internal: " + text}
			d.refuses(fails, call, text)
			again(t)
		})
		t.Run("dies in "+call, func(t *testing.T) {
			d.t = t
			d.expects("shim|container")
			dies := d.Behaviour
			dies.Die = []string{call}
			d.refuses(dies, "dies-"+call, d.path)
			again(t)
		})
	}
	t.Run("has none", func(t *testing.T) {
		d.t = t
		d.expects("shim|container")
		none := d.Behaviour
		none.Fail = map[string]string{"CreateSandbox": "Unimplemented: service containerd.runtime.sandbox.v1.Sandbox"}
		d.refuses(none, "none", fmt.Sprintf("FailedPrecondition|%s does not serve the Sandbox API", d.path))
		again(t)
	})
}

// refuses checks that a pod is refused with an error that has all of the texts, which | separates.
func (d *dialect) refuses(b behaviour.Behaviour, name, texts string) {
	d.t.Helper()
	if err := b.Save(d.path); err != nil {
		d.t.Fatal(err)
	}
	pod, err := d.sandboxConfig(name, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	_, err = d.runtime().RunPodSandbox(d.ctx(), &cri.RunPodSandboxRequest{Config: pod, RuntimeHandler: "shim"})
	for _, text := range strings.Split(texts, "|") {
		if err == nil || !strings.Contains(err.Error(), text) {
			d.t.Errorf("the pod is refused with %v", err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(d.state, "executor", "bundles", "*")); len(left) > 0 {
		d.t.Errorf("bundles are left: %v", left)
	}
}
