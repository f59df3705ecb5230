package kubelet

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	pauseImage       = "crisp.test/pause:latest"
	containerdBridge = "crisp-ctdk"
)

// startContainerd starts Debian's containerd instead of crispd, on the socket that the kubelet
// uses, and loads the image into it.
func (n *node) startContainerd() {
	n.t.Helper()
	bin, err := filepath.Abs("../../.cache/containerd/usr/bin")
	check(n.t, err)
	if _, err := os.Stat(filepath.Join(bin, "containerd")); err != nil {
		if bin = "/usr/bin"; !present(filepath.Join(bin, "containerd")) {
			n.t.Skip("needs containerd: neither installed nor in .cache/containerd, where make test-kubelet unpacks Debian's package")
		}
	}
	if _, err := exec.LookPath("runc"); err != nil {
		n.t.Skipf("containerd needs runc: %v", err)
	}
	n.mountAllCgroups()
	n.systemd = present("/run/systemd/system") && present("/sys/fs/cgroup/cgroup.controllers") // chosen as crispd does
	n.t.Cleanup(func() { _ = exec.Command("ip", "link", "delete", containerdBridge).Run() })   // exists only if a pod has run
	socket := filepath.Join(n.dir, "containerd.sock")
	n.write("containerd.toml", fmt.Sprintf(containerdConfig, n.dir, socket, pauseImage, n.plugins(), n.systemd))
	check(n.t, os.Mkdir(filepath.Join(n.dir, "cni"), 0o755))
	n.write("cni/10-crisp.conflist", fmt.Sprintf(containerdNetwork, containerdBridge, filepath.Join(n.dir, "ipam")))
	n.start("containerd", "/usr/bin/env", "PATH="+bin+":"+os.Getenv("PATH"), "containerd", "--config", filepath.Join(n.dir, "containerd.toml"))
	n.connect(socket)
	testbin := n.testbin()
	n.write("testbin.tar", string(imageOf(n.t, testbin, []string{"/testbin"}, testImage)))
	n.write("pause.tar", string(imageOf(n.t, testbin, []string{"/testbin", "sleep", "for-ever"}, pauseImage)))
	for _, archive := range []string{"testbin.tar", "pause.tar"} {
		out, err := exec.Command(filepath.Join(bin, "ctr"), "--address", socket, "--namespace", "k8s.io", "images", "import", "--snapshotter", "overlayfs", filepath.Join(n.dir, archive)).CombinedOutput()
		if err != nil {
			n.t.Fatalf("import %s: %v\n%s", archive, err, out)
		}
	}
}

const containerdConfig = `version = 2
root = "%[1]s/containerd"
state = "%[1]s/run"
[grpc]
  address = "%[2]s"
[ttrpc]
  address = "%[2]s.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%[3]s"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "%[4]s"
    conf_dir = "%[1]s/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = %[5]t
`

const containerdNetwork = `{"cniVersion": "1.0.0", "name": "crisp-ctdk", "plugins": [
  {"type": "bridge", "bridge": %q, "isGateway": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.218.241.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": %q}}]}
`

// plugins returns a directory with our CNI plugins and loopback, which containerd requires.
func (n *node) plugins() string {
	n.t.Helper()
	dir := filepath.Join(n.dir, "plugins")
	check(n.t, os.Mkdir(dir, 0o755))
	for _, plugin := range []string{"bridge", "host-local"} {
		check(n.t, os.Symlink(program(filepath.Join("cni", plugin)), filepath.Join(dir, plugin)))
	}
	if built := program("loopback"); present(built) {
		check(n.t, os.Symlink(built, filepath.Join(dir, "loopback")))
		return dir
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/", "github.com/containernetworking/plugins/plugins/main/loopback")
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("build the CNI plugin loopback: %v\n%s", err, out)
	}
	return dir
}

// mountAllCgroups mounts the hierarchies of cgroup v1 that are not mounted anywhere: with one of
// them unmounted, containerd has no statistics.
func (n *node) mountAllCgroups() {
	n.t.Helper()
	if present("/sys/fs/cgroup/cgroup.controllers") {
		return
	}
	data, err := os.ReadFile("/proc/self/cgroup")
	check(n.t, err)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	check(n.t, err)
	for line := range strings.Lines(string(data)) {
		controller := strings.Split(line, ":")[1]
		dir := filepath.Join("/sys/fs/cgroup", controller)
		if controller == "" || strings.Contains(controller, "=") || strings.Contains(string(mounts), " "+dir+" ") {
			continue
		}
		check(n.t, os.MkdirAll(dir, 0o755))
		check(n.t, syscall.Mount("cgroup", dir, "cgroup", 0, controller))
		n.t.Cleanup(func() {
			n.removeCgroups(podsCgroup)
			gone := n.waits(10*time.Second, func() bool { return syscall.Unmount(dir, 0) == nil })
			if err := os.Remove(dir); !gone || err != nil {
				n.t.Errorf("%s: unmounted %v, %v", dir, gone, err)
			}
		})
	}
}

func present(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
