package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/opencontainers/cgroups"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/noleaks"
	"github.com/crisp-cri/crisp/test/testenv"
	"github.com/crisp-cri/crisp/test/testns"
)

// The agent needs nothing but CRI: on containerd it behaves as on crispd, even on a version
// (Debian's 1.6) that has no event stream and lacks RPCs.
func TestAgentOnContainerd(t *testing.T) {
	n := startContainerd(t)
	l := labOn(t, n, rotating...)
	t.Cleanup(func() { // before the agent ends
		if !t.Failed() {
			return
		}
		for _, file := range []string{"containerd.log", "agent.log"} {
			log, _ := os.ReadFile(filepath.Join(n.dir, file))
			t.Logf("%s:\n%s", file, log[max(0, len(log)-4000):])
		}
	})

	l.run(t, "web", `
  terminationGracePeriodSeconds: 2
  initContainers:
  - {name: init, image: IMAGE, args: [write, /d/page, "hello\n"], volumeMounts: [{name: d, mountPath: /d}]}
  - {name: side, image: IMAGE, restartPolicy: Always, args: [catch, print, beside, sleep, for-ever], volumeMounts: [{name: d, mountPath: /d}]}
  containers:
  - name: app
    image: IMAGE
    args: [cat, /d/page, cat, /etc/conf/mode, http, ":80", hello, await, /d/end, exit, "3"]
    env: [{name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
    readinessProbe: {httpGet: {path: /, port: 80}, periodSeconds: 1}
    livenessProbe: {exec: {command: [/testbin, print, alive]}, periodSeconds: 1, timeoutSeconds: 10}
    resources: {limits: {memory: 64Mi}}
    volumeMounts: [{name: d, mountPath: /d}, {name: conf, mountPath: /etc/conf}]
  volumes: [{name: d, emptyDir: {}}, {name: conf, configMap: {name: conf}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {mode: "fast\n"}
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		l.says(0, `web +2/2 +Running +0 `, "get", "pods")
		l.says(0, `^hello\nfast\n$`, "logs", "web", "-c", "app")
		l.says(0, `^beside\n$`, "logs", "web", "-c", "side")
		l.says(7, `^hi\n$`, "exec", "web", "-c", "app", "--", "/testbin", "print", "hi", "exit", "7")
		l.says(0, `(?m)^POD +CPU\(cores\) +MEMORY\(bytes\)\nweb +\d+m +[1-9]\d*Mi$`, "top", "pods")
		l.says(0, `(?m)^web +app +\d+m +\d+Mi\nweb +side +\d+m +\d+Mi$`, "top", "pods", "web", "--containers")
		if ip := l.exec("app", "env", "POD_IP"); strings.TrimSpace(ip) != l.pod().Status.PodIP || ip == "\n" {
			t.Errorf("the pod has the address %q, the container got %q", l.pod().Status.PodIP, ip)
		}

		// An agent that dies loses nothing: its successor finds the pods by their labels.
		id := l.status("app").ContainerID
		l.restart()
		l.awaitReady()
		if now := l.status("app").ContainerID; now != id {
			t.Errorf("after a restart of the agent %s runs, before it was %s", now, id)
		}

		l.exec("side", "write", "/d/end", "") // app's own end could end the exec with it
		l.awaitRestarts("app", 1)
		if s := l.status("app").LastTerminationState.Terminated; s == nil || s.ExitCode != 3 {
			t.Errorf("app ended so: %+v", s)
		}
	})

	l.run(t, "job", `
  restartPolicy: Never
  containers: [{name: app, image: IMAGE, args: [print, done]}]
`, func(t *testing.T, l *lab) {
		l.awaitPhase(v1.PodSucceeded)
		l.says(0, `^done\n$`, "logs", "job")
		// containerd 1.6 fails the call for pod statistics while a sandbox is not ready, so the agent
		// adds up those of containers.
		l.until(func() bool {
			list, err := l.n.runtime().ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
			return err == nil && len(list.Items) == 1 && list.Items[0].State == cri.PodSandboxState_SANDBOX_NOTREADY
		}, "the sandbox is not ready any more")
		l.run(t, "beside", `
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: IMAGE, args: [sleep, for-ever]}]
`, func(t *testing.T, l *lab) {
			l.awaitReady()
			l.says(0, `^POD +CPU\(cores\) +MEMORY\(bytes\)\nbeside +\d+m +[1-9]\d*Mi\n$`, "top", "pods")
			l.says(0, `(?m)^beside +app +\d+m +[1-9]\d*Mi$`, "top", "pods", "--containers")
		})
	})

	smoke(t, l)
	rotations(t, l, 3)

	l.until(func() bool {
		sandboxes, err := n.runtime().ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
		return err == nil && len(sandboxes.Items) == 0
	}, "no sandbox is left")
	for _, dir := range []string{"pods", "logs"} {
		dir = filepath.Join(n.dir, "agent", dir)
		l.until(func() bool { left, err := os.ReadDir(dir); return err == nil && len(left) == 0 }, dir+" is empty")
	}
}

const (
	pauseImage       = "crisp.test/pause:latest"
	containerdBridge = "crisp-ctd"
)

// containerdPrograms lists the programs that may leave no process.
var containerdPrograms = append([]string{"containerd", "containerd-shim-runc-v2", "loopback"}, programs...)

// startContainerd starts a containerd with its own directories and the test image. Agents find its
// socket where they would find the node's crispd.
func startContainerd(t *testing.T) *node {
	t.Helper()
	testenv.NeedRoot(t, "it runs containers")
	if _, err := os.Stat("/etc/hosts"); err != nil {
		t.Skipf("containerd starts no pod without it: %v", err)
	}
	bin := containerdBin(t)
	before, err := noleaks.Take(containerdPrograms...)
	if err != nil {
		t.Fatal(err)
	}
	n, err := newNode(t.TempDir(), buildOnce(t))
	if err != nil {
		t.Fatal(err)
	}
	n.socket = filepath.Join(n.dir, "run", "containerd.sock")
	t.Cleanup(func() {
		_ = exec.Command("ip", "link", "delete", containerdBridge).Run() // exists only if a pod has run
		before.Check(t, func(line string) bool {
			return n.mine(line) || strings.Contains(line, containerdBridge) || strings.Contains(line, "process containerd")
		}, containerdPrograms...)
		if err := os.RemoveAll(n.dir); err != nil {
			t.Error(err)
		}
	})
	mountAllCgroups(t)
	if testns.Isolated() {
		t.Cleanup(func() { os.RemoveAll("/run/containerd") }) // for its shims' sockets, whatever the configuration says
	}
	writeContainerdConfig(t, n)
	log, err := os.Create(filepath.Join(n.dir, "containerd.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(bin, "containerd"), "--config", filepath.Join(n.dir, "containerd.toml"))
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH")) // where containerd finds its shims
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endContainerd(t, n, cmd) })

	ctr := func(args ...string) error {
		args = append([]string{"--address", n.socket, "--namespace", "k8s.io"}, args...)
		out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "ctr"), args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ctr %q: %w\n%s", args, err, out)
		}
		return nil
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if err = ctr("version"); err == nil {
			break
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("containerd does not answer: %v\n%s", err, text)
		}
	}
	for _, archive := range []string{n.archive, pauseArchive(t, n)} {
		if err := ctr("images", "import", "--snapshotter", "overlayfs", archive); err != nil {
			t.Fatal(err)
		}
	}
	n.conn, err = grpc.NewClient("unix://"+n.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// mountAllCgroups mounts the hierarchies of cgroup v1 that are not mounted anywhere: with
// one of them unmounted, containerd has no statistics.
func mountAllCgroups(t *testing.T) {
	t.Helper()
	if !testns.Isolated() {
		return
	}
	pods := func() { removeCgroups("kubepods/burstable", "kubepods/besteffort", "kubepods", "k8s.io") } // those of the agent, which it keeps, and containerd's
	t.Cleanup(pods)
	mine, err := cgroups.ParseCgroupFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := cgroups.GetCgroupMounts(true)
	if err != nil {
		t.Fatal(err)
	}
	for controller := range mine {
		if controller == "" || strings.HasPrefix(controller, "name=") ||
			slices.ContainsFunc(mounts, func(m cgroups.Mount) bool { return slices.Contains(m.Subsystems, controller) }) {
			continue
		}
		dir := filepath.Join("/sys/fs/cgroup", controller)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("cgroup", dir, "cgroup", 0, controller); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			pods()
			if err := errors.Join(syscall.Unmount(dir, 0), os.Remove(dir)); err != nil {
				t.Error(err)
			}
		})
	}
}

// containerdBin returns the directory of the containerd that CONTAINERD names, with its shim, ctr
// and runc; otherwise of Debian's, unpacked by make test or installed.
func containerdBin(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("CONTAINERD"); dir != "" {
		return dir
	}
	return filepath.Dir(testenv.Program(t, "containerd", "ctr"))
}

func writeContainerdConfig(t *testing.T, n *node) {
	t.Helper()
	cni := filepath.Join(n.dir, "cni")
	if err := os.Mkdir(cni, 0o755); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		filepath.Join(n.dir, "containerd.toml"): fmt.Sprintf(containerdConfig, n.dir, n.socket, pauseImage, pluginsOf(t, n), cni),
		filepath.Join(cni, "10-crisp.conflist"): fmt.Sprintf(containerdNetwork, containerdBridge, filepath.Join(n.dir, "ipam")),
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
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
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%[3]s"
  restrict_oom_score_adj = true
  disable_hugetlb_controller = false
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "%[4]s"
    conf_dir = "%[5]s"
`

const containerdNetwork = `{"cniVersion": "1.0.0", "name": "crisp-ctd", "plugins": [
  {"type": "bridge", "bridge": %q, "isGateway": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.218.240.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": %q}}]}
`

// pluginsOf returns a directory with our CNI plugins and loopback, which containerd
// requires.
func pluginsOf(t *testing.T, n *node) string {
	t.Helper()
	dir := filepath.Join(scratch, "containerd-cni")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, plugin := range []string{"bridge", "host-local"} {
		if err := os.Symlink(filepath.Join(n.binaries.dir, "cni", plugin), filepath.Join(dir, plugin)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	// Without Go, it is built already.
	for _, loopback := range []string{"/usr/lib/cni/loopback", filepath.Join(n.binaries.dir, "loopback")} {
		if !testenv.Exists(loopback) {
			continue
		}
		if err := os.Symlink(loopback, filepath.Join(dir, "loopback")); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
		return dir
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/", "github.com/containernetworking/plugins/plugins/main/loopback")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the CNI plugin loopback: %v\n%s", err, out)
	}
	return dir
}

// pauseArchive returns an archive of the image for containerd's sandboxes.
func pauseArchive(t *testing.T, n *node) string {
	t.Helper()
	image, err := testbinImage(n.testbin)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.Config.Entrypoint, config.Config.Cmd = []string{"/testbin", "sleep", "for-ever"}, nil
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(pauseImage)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(scratch, "pause.tar")
	if err := tarball.WriteToFile(path, tag, image); err != nil {
		t.Fatal(err)
	}
	return path
}

// endContainerd ends containerd, and its shims, which outlive it, if a test has failed
// halfway.
func endContainerd(t *testing.T, n *node, cmd *exec.Cmd) {
	if n.conn == nil { // containerd never answered
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return
	}
	defer n.conn.Close()
	runtime, ctx := n.runtime(), context.WithoutCancel(t.Context())
	if sandboxes, err := runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{}); err == nil {
		for _, s := range sandboxes.Items {
			_, _ = runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.Id})
			_, _ = runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.Id})
		}
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("containerd did not exit on SIGTERM")
		_ = cmd.Process.Kill()
		<-ended
	}
}
