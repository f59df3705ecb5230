package test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/shimtest/behaviour"
	"github.com/crisp-cri/crisp/test/testenv"
)

// A dialect is a node whose handler "shim" is the shim of tests, with one of its dialects.
type dialect struct {
	*unified
	config string
	path   string // of the shim
	behaviour.Behaviour
}

// startDialect starts the node; more is added to the handler's configuration.
func startDialect(t *testing.T, b behaviour.Behaviour, more string) *dialect {
	t.Helper()
	testenv.Need(t, "shims")
	built, err := testenv.Build(scratch, "shimtest")
	if err != nil {
		t.Fatal(err)
	}
	d := &dialect{Behaviour: b}
	n, config := startNode(t, func(n *node, config string) error {
		d.path, d.Record = filepath.Join(n.dir, "containerd-shim-test-v2"), filepath.Join(n.dir, "record")
		if err := testenv.Link(built, d.path); err != nil {
			return err
		}
		if err := d.Save(d.path); err != nil {
			return err
		}
		f, err := os.OpenFile(config, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = fmt.Fprintf(f, "[handlers.shim]\nshim = %q\n%s", d.path, more)
		return err
	})
	d.unified, d.config = &unified{node: n, t: t}, config
	return d
}

// runPod runs a pod of the handler.
func (d *dialect) runPod(name string, annotations map[string]string) {
	d.t.Helper()
	pod, err := d.sandboxConfig(name, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	pod.Annotations = annotations
	resp, err := d.runtime().RunPodSandbox(d.ctx(), &cri.RunPodSandboxRequest{Config: pod, RuntimeHandler: "shim"})
	if err != nil {
		d.t.Fatal(err)
	}
	d.sandboxes[name], d.ids[name] = pod, resp.PodSandboxId
}

// run starts a container, and returns its ID.
func (d *dialect) run(pod string, config *cri.ContainerConfig) (string, error) {
	d.t.Helper()
	config.LogPath = config.Metadata.Name + ".log"
	resp, err := d.runtime().CreateContainer(d.ctx(), &cri.CreateContainerRequest{PodSandboxId: d.ids[pod], SandboxConfig: d.sandboxes[pod], Config: config})
	if err != nil {
		return "", err
	}
	_, err = d.runtime().StartContainer(d.ctx(), &cri.StartContainerRequest{ContainerId: resp.ContainerId})
	return resp.ContainerId, err
}

func testbinIn(name string, command ...string) *cri.ContainerConfig {
	return &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name}, Image: &cri.ImageSpec{Image: testImage}, Command: append([]string{"/testbin"}, command...),
	}
}

// exits waits for a container's end and returns its status.
func (d *dialect) exits(id string) *cri.ContainerStatus {
	d.t.Helper()
	for {
		s, err := d.runtime().ContainerStatus(d.ctx(), &cri.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			d.t.Fatal(err)
		}
		if s.Status.State == cri.ContainerState_CONTAINER_EXITED {
			return s.Status
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// logs returns the text of a container's log.
func (d *dialect) output(pod, name string) string {
	var text strings.Builder
	for line := range strings.Lines(string(read(d.t, filepath.Join(d.dir, "logs", pod, name+".log")))) {
		if f := strings.SplitN(line, " ", 4); len(f) == 4 {
			text.WriteString(f[3])
		}
	}
	return text.String()
}

// asked returns the requests of a call for a kind of container.
func (d *dialect) asked(call, kind string) (found []map[string]any) {
	d.t.Helper()
	all, err := d.Requests()
	if err != nil {
		d.t.Fatal(err)
	}
	for _, r := range all {
		if r.Error != "" {
			d.t.Errorf("%s of %s %s was refused: %s", r.Call, r.Kind, r.ID, r.Error)
		}
		if r.Call == call && r.Kind == kind {
			var request map[string]any
			if err := json.Unmarshal(r.Request, &request); err != nil {
				d.t.Fatal(err)
			}
			found = append(found, request)
		}
	}
	return found
}

// kill ends crispd and the executor, and starts crispd again.
func (d *dialect) kill() {
	d.t.Helper()
	pid, err := d.executorPid()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		d.t.Fatal(err)
	}
	if err := d.stopDaemon(syscall.SIGKILL); err != nil && !strings.Contains(err.Error(), "killed") {
		d.t.Fatal(err)
	}
	if err := d.start(d.config, nil); err != nil {
		d.t.Fatal(err)
	}
}

// Kata's shim cannot run without KVM. The shim of tests demands what it does: one virtual machine per
// pod, which is its first container, with the pod's annotations; root file systems that can be shared
// with it; options of its type. All PIDs are the virtual machine's.
func TestKata(t *testing.T) {
	testenv.Need(t, "shims")
	for _, snapshot := range []string{"directory", "mounts"} {
		t.Run(snapshot, func(t *testing.T) {
			d := startDialect(t, behaviour.Behaviour{Version: 2, Answer: "address", Dialect: "kata"},
				fmt.Sprintf("options = %q\nsnapshot = %q\nannotations = [\"io.katacontainers.*\"]\n", "/etc/kata/configuration.toml", snapshot))
			d.runPod("p", map[string]string{"io.katacontainers.config.hypervisor.default_vcpus": "2", "other.example.com": "x"})
			config := testbinIn("app", "print", "begun", "cat", "/data/file", "await", "/data/go", "print", "ended", "exit", "7")
			config.Mounts = []*cri.Mount{{HostPath: d.work, ContainerPath: "/data"}}
			if err := os.WriteFile(filepath.Join(d.work, "file"), []byte("shared\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			app, err := d.run("p", config)
			if err != nil {
				t.Fatal(err)
			}
			beside, err := d.run("p", testbinIn("beside", "sleep", "for-ever"))
			if err != nil {
				t.Fatal(err)
			}
			x, err := d.runtime().ExecSync(d.ctx(), &cri.ExecSyncRequest{ContainerId: beside, Cmd: []string{"/testbin", "print", "hello", "exit", "3"}})
			if err != nil || string(x.Stdout) != "hello\n" || x.ExitCode != 3 {
				t.Errorf("exec: %v (%v)", x, err)
			}
			d.kill()
			if err := os.WriteFile(filepath.Join(d.work, "go"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if s := d.exits(app); s.ExitCode != 7 || d.output("p", "app") != "begun\nshared\nended\n" {
				t.Errorf("exit code %d, output %q", s.ExitCode, d.output("p", "app"))
			}
			if starts := len(d.asked("start", "sandbox")) + len(d.asked("start", "container")); starts != 1 {
				t.Errorf("the program was called %d times for one virtual machine", starts)
			}
			sandboxes, containers := d.asked("Create", "sandbox"), d.asked("Create", "container")
			if len(sandboxes) != 1 || len(containers) != 2 {
				t.Fatalf("%d sandboxes and %d containers were created", len(sandboxes), len(containers))
			}
			bundle := fmt.Sprint(sandboxes[0]["bundle"])
			var spec struct{ Annotations map[string]string }
			if err := json.Unmarshal(read(t, filepath.Join(bundle, "config.json")), &spec); err != nil {
				t.Fatal(err)
			}
			if spec.Annotations["io.katacontainers.config.hypervisor.default_vcpus"] != "2" || spec.Annotations["other.example.com"] != "" {
				t.Errorf("the virtual machine's annotations are %v", spec.Annotations)
			}
			if _, mounts := containers[0]["rootfs"]; mounts != (snapshot == "mounts") {
				t.Errorf("the root file system is given as %v", containers[0]["rootfs"])
			}
			if options := fmt.Sprint(sandboxes[0]["options"]); !strings.Contains(options, "runtimeoptions.v1.Options") || !strings.Contains(options, "/etc/kata/configuration.toml") {
				t.Errorf("the options are %s", options)
			}
			if _, err := d.runtime().RemovePodSandbox(d.ctx(), &cri.RemovePodSandboxRequest{PodSandboxId: d.ids["p"]}); err != nil {
				t.Error(err)
			}
			if len(d.asked("Shutdown", "")) == 0 {
				t.Error("the virtual machine was not shut down")
			}
		})
	}
}

// moduleOf returns a WebAssembly module that does what the shim of tests reads in its custom section.
func moduleOf(script string) []byte {
	name := "\x06script" + script
	section := append(binary.AppendUvarint([]byte{0}, uint64(len(name))), name...)
	return append([]byte("\x00asm\x01\x00\x00\x00"), section...)
}

// loadModule loads an image with a module as a file.
func (d *dialect) loadModule(ref, script string) {
	d.t.Helper()
	dir := d.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hello.wasm"), moduleOf(script), 0o644); err != nil {
		d.t.Fatal(err)
	}
	image, err := testbinImage(d.testbin)
	if err != nil {
		d.t.Fatal(err)
	}
	if image, err = withFiles(image, dir); err != nil {
		d.t.Fatal(err)
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		d.t.Fatal(err)
	}
	archive := filepath.Join(d.t.TempDir(), "module.tar")
	if err := tarball.WriteToFile(archive, tag, image); err != nil {
		d.t.Fatal(err)
	}
	load := exec.Command(filepath.Join(d.binaries.dir, "crisp"), "--runtime-endpoint", "unix://"+d.socket, "image", "load", "-i", archive)
	if out, err := load.CombinedOutput(); err != nil {
		d.t.Fatalf("%v\n%s", err, out)
	}
}

// The shims of runwasi run modules: the sandbox's own process is not run, there is neither exec nor a
// terminal, and the status of a signal has no 128 added. What they cannot do is a clear error.
func TestWasm(t *testing.T) {
	d := startDialect(t, behaviour.Behaviour{Version: 2, Answer: "address", Dialect: "runwasi"}, "")
	const image = "crisp.test/module:latest"
	d.loadModule(image, "hello\nenv WHO\nexit 5\n")
	d.loadModule("crisp.test/long:latest", "begun\nsleep 1h\n")
	d.runPod("p", nil)
	module := func(name, ref string) *cri.ContainerConfig {
		return &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: name}, Image: &cri.ImageSpec{Image: ref},
			Command: []string{"/hello.wasm#main"}, Args: []string{"one"}, Envs: []*cri.KeyValue{{Key: "WHO", Value: []byte("world")}},
		}
	}
	id, err := d.run("p", module("app", image))
	if err != nil {
		t.Fatal(err)
	}
	if s := d.exits(id); s.ExitCode != 5 || d.output("p", "app") != "module /hello.wasm#main one\nhello\nWHO=world\n" {
		t.Errorf("exit code %d, output %q", s.ExitCode, d.output("p", "app"))
	}
	long, err := d.run("p", module("long", "crisp.test/long:latest"))
	if err != nil {
		t.Fatal(err)
	}
	d.asked("Create", "container") // reports what was refused so far
	if _, err := d.runtime().ExecSync(d.ctx(), &cri.ExecSyncRequest{ContainerId: long, Cmd: []string{"/x"}}); err == nil || !strings.Contains(err.Error(), "exec is not supported") {
		t.Errorf("exec: %v", err)
	}
	terminal := module("terminal", image)
	terminal.Tty = true
	if _, err := d.run("p", terminal); err == nil || !strings.Contains(err.Error(), "terminal is not supported") {
		t.Errorf("a terminal: %v", err)
	}
	if _, err := d.run("p", testbinIn("none", "exit", "0")); err != nil && !strings.Contains(err.Error(), "module") {
		t.Errorf("no module: %v", err)
	}
	d.kill()
	if _, err := d.runtime().StopContainer(d.ctx(), &cri.StopContainerRequest{ContainerId: long, Timeout: 5}); err != nil {
		t.Error(err)
	}
	if s := d.exits(long); s.ExitCode == 0 {
		t.Errorf("exit code %d after a signal", s.ExitCode)
	}
	if s, err := d.runtime().PodSandboxStatus(d.ctx(), &cri.PodSandboxStatusRequest{PodSandboxId: d.ids["p"]}); err != nil || s.Status.State != cri.PodSandboxState_SANDBOX_READY {
		t.Errorf("the pod is %v (%v)", s, err)
	}
}

// A shim that hangs in any call: the pod can be stopped and removed all the same, and another one runs.
func TestShimThatHangs(t *testing.T) {
	d := startDialect(t, behaviour.Behaviour{}, "")
	for _, call := range []string{"Kill", "Delete", "Wait", "State", "Shutdown"} {
		t.Run(call, func(t *testing.T) {
			d.t = t
			d.expects("shim|did not|container")
			check := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			quiet := d.Behaviour
			check(quiet.Save(d.path))
			d.runPod(call, nil)
			id, err := d.run(call, testbinIn("c", "sleep", "for-ever"))
			check(err)
			quiet.Hang = []string{call}
			check(quiet.Save(d.path))
			_, err = d.runtime().StopContainer(d.ctx(), &cri.StopContainerRequest{ContainerId: id, Timeout: 0})
			check(err)
			_, err = d.runtime().StopPodSandbox(d.ctx(), &cri.StopPodSandboxRequest{PodSandboxId: d.ids[call]})
			check(err)
			_, err = d.runtime().RemovePodSandbox(d.ctx(), &cri.RemovePodSandboxRequest{PodSandboxId: d.ids[call]})
			check(err)
			check(d.Save(d.path))
			d.runPod(call+"-again", nil)
			_, err = d.runtime().RemovePodSandbox(d.ctx(), &cri.RemovePodSandboxRequest{PodSandboxId: d.ids[call+"-again"]})
			check(err)
		})
	}
}
