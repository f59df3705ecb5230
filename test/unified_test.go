package test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/cgroups"
	_ "github.com/opencontainers/cgroups/devices"
	"github.com/opencontainers/cgroups/manager"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// A unified is a node on cgroup v2 with a pod in a cgroup that the test makes, as the kubelet does.
type unified struct {
	*node
	t       *testing.T
	driver  string
	config  string // path
	pod     string // directory of the pod's cgroup
	pods    string // cgroup_parent of the pod, as the kubelet names it
	box     string // the container under test
	boxPid  int
	boxDir  string
	sandbox string
}

func newUnified(t *testing.T, driver string) *unified {
	n, config := startNode(t)
	if err := n.stopDaemon(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, fmt.Appendf(nil, "cgroup_driver = %q\n", driver), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := n.start(config, nil); err != nil {
		t.Fatal(err)
	}
	u := &unified{node: n, t: t, driver: driver, config: config}
	resp, err := n.runtime().RuntimeConfig(u.ctx(), &cri.RuntimeConfigRequest{})
	if got := strings.ToLower(resp.GetLinux().GetCgroupDriver().String()); err != nil || got != driver {
		t.Errorf("RuntimeConfig has the driver %q, %v", got, err)
	}
	uid := strconv.Itoa(os.Getpid())
	group := &cgroups.Cgroup{Systemd: driver == "systemd", Resources: &cgroups.Resources{SkipDevices: true}}
	if group.Systemd {
		group.Parent, group.Name = "crisptest-burstable.slice", "crisptest-burstable-pod"+uid+".slice"
		u.pods = "/crisptest.slice/crisptest-burstable.slice/" + group.Name
	} else {
		u.pods = "/crisptest/burstable/pod" + uid
		group.Path = u.pods
	}
	kubelet, err := manager.New(group)
	if err != nil {
		t.Fatal(err)
	}
	if err := kubelet.Apply(-1); err != nil {
		t.Fatal(err)
	}
	if err := kubelet.Set(&cgroups.Resources{SkipDevices: true, Memory: 512 << 20}); err != nil {
		t.Fatal(err)
	}
	u.pod = kubelet.Path("")
	t.Cleanup(func() {
		kubelet.Destroy()
		for _, dir := range []string{"/sys/fs/cgroup/crisptest/burstable", "/sys/fs/cgroup/crisptest"} {
			os.Remove(dir)
		}
		for _, slice := range []string{"crisptest-burstable.slice", "crisptest.slice"} {
			if driver == "systemd" {
				exec.Command("systemctl", "stop", slice).Run()
			}
		}
	})
	config2, err := n.sandboxConfig("p", []string{"host-network"})
	if err != nil {
		t.Fatal(err)
	}
	config2.Linux.CgroupParent = u.pods
	u.sandbox = u.run(config2)
	return u
}

func (u *unified) ctx() context.Context {
	ctx, cancel := context.WithTimeout(u.t.Context(), callTimeout)
	u.t.Cleanup(cancel)
	return ctx
}

func (u *unified) run(config *cri.PodSandboxConfig) string {
	u.t.Helper()
	return u.runWith(config, "")
}

// runWith is run with a handler.
func (u *unified) runWith(config *cri.PodSandboxConfig, handler string) string {
	u.t.Helper()
	resp, err := u.runtime().RunPodSandbox(u.ctx(), &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	if err != nil {
		u.t.Fatal(err)
	}
	u.sandboxes[config.Metadata.Name], u.ids[config.Metadata.Name] = config, resp.PodSandboxId
	return resp.PodSandboxId
}

// begin starts a container in the pod.
func (u *unified) begin(pod, name string, res *cri.LinuxContainerResources, command ...string) (id string, pid int) {
	u.t.Helper()
	resp, err := u.runtime().CreateContainer(u.ctx(), &cri.CreateContainerRequest{
		PodSandboxId: u.ids[pod], SandboxConfig: u.sandboxes[pod],
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: name},
			Image:    &cri.ImageSpec{Image: testImage},
			Command:  append([]string{"/testbin"}, command...),
			LogPath:  name + ".log",
			Linux:    &cri.LinuxContainerConfig{Resources: res},
		},
	})
	if err != nil {
		u.t.Fatal(err)
	}
	if _, err := u.runtime().StartContainer(u.ctx(), &cri.StartContainerRequest{ContainerId: resp.ContainerId}); err != nil {
		u.t.Fatal(err)
	}
	u.ids[name] = resp.ContainerId
	return resp.ContainerId, u.pid(resp.ContainerId)
}

// pid returns the PID of the container's init, 0 if it has exited.
func (u *unified) pid(id string) int {
	u.t.Helper()
	resp, err := u.runtime().ContainerStatus(u.ctx(), &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		u.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(resp.Info["info"], `"pid":`)
	var pid int
	fmt.Sscan(rest, &pid)
	return pid
}

// check checks the values in files of a cgroup.
func (u *unified) check(when, dir string, want map[string]string) {
	u.t.Helper()
	for file, want := range want {
		data, err := os.ReadFile(filepath.Join(dir, file))
		if got := strings.TrimSpace(string(data)); got != want {
			u.t.Errorf("%s: %s is %q, want %q (err %v)", when, file, got, want, err)
		}
	}
}

// systemctl runs systemctl, if systemd runs here.
func (u *unified) systemctl(args ...string) string {
	u.t.Helper()
	if !testenv.Exists("/run/systemd/system") {
		return ""
	}
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		u.t.Errorf("systemctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
