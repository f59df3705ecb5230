package kubelet

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	testImage = "crisp.test/testbin:latest"
	nodeName  = "crispnode"
)

// ownImages has the pods that pull. Each names the image by its own name, OWN-IMAGE in its
// manifest: while one pod pulls an image, neither the kubelet nor the agent gives it to another
// pod, even one that never pulls.
var ownImages = []string{"pull-always", "pull-if-not-present"}

func ownImage(pod string) string { return "crisp.test/" + pod + ":latest" }

// recorded has the calls that change something, and those of probes and hooks.
var recorded = map[string]bool{
	"RunPodSandbox": true, "StopPodSandbox": true, "RemovePodSandbox": true,
	"CreateContainer": true, "StartContainer": true, "StopContainer": true, "RemoveContainer": true,
	"UpdateContainerResources": true, "UpdatePodSandboxResources": true, "ExecSync": true, "PullImage": true, "RemoveImage": true,
}

// A node is a crispd with the test image, a proxy in front of it, and a driver: the kubelet or the
// agent. All files are below dir, at the same relative paths for both drivers.
type node struct {
	t       *testing.T
	driver  string
	dir     string
	proxy   *proxy
	conn    *grpc.ClientConn // to crispd, without the proxy
	ports   []int            // of the driver: read-only, main, health
	pods    string           // URL of the driver's list of pods
	systemd bool             // whether systemd makes the cgroups
	flags   []string         // additional flags of the kubelet
	look    func(*v1.Pod)    // if not nil, called with each pod that has reached its state
	marks   []string         // identify the node's objects in the kernel, see remember
	ended   map[string]chan error
	cmds    map[string]*exec.Cmd
}

// startNode starts a node, which ends with the test.
func startNode(t *testing.T, driver string) *node {
	t.Helper()
	n := newNode(t, driver)
	n.startCrispd()
	n.drive()
	return n
}

// newNode makes the node's directory.
func newNode(t *testing.T, driver string) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "crisp-"+driver+"-") // short, since it is part of sockets' paths
	check(t, err)
	check(t, os.Chmod(dir, 0o711)) // users in user namespaces must be able to pass through it
	n := &node{t: t, driver: driver, dir: dir, ended: map[string]chan error{}, cmds: map[string]*exec.Cmd{}}
	before := machine(t)
	t.Cleanup(func() { n.leavesNothing(before) })
	t.Cleanup(func() { before.restore(t) })
	t.Cleanup(n.end)
	for _, d := range []string{"manifests", "root", "logs", "host"} {
		check(t, os.Mkdir(filepath.Join(dir, d), 0o755))
	}
	// Where / is not shared, only mounts below this directory can propagate into a pod.
	host := filepath.Join(dir, "host")
	check(t, syscall.Mount(host, host, "", syscall.MS_BIND, ""))
	check(t, syscall.Mount("", host, "", syscall.MS_SHARED, ""))
	n.silentRegistry()
	n.write("resolv.conf", "nameserver 192.0.2.53\nsearch node.test\n")
	n.write("crispd.toml", "")
	return n
}

// startCrispd starts the runtime and loads the image.
func (n *node) startCrispd() {
	n.t.Helper()
	n.runCrispd()
	n.connect(filepath.Join(n.dir, "crispd.sock"))
	n.load()
	n.asksForDriver()
}

func (n *node) runCrispd() {
	n.t.Helper()
	n.start("crispd", program("crispd"), "--config", filepath.Join(n.dir, "crispd.toml"), "--root", filepath.Join(n.dir, "crispd"),
		"--state", filepath.Join(n.dir, "run"), "--socket", filepath.Join(n.dir, "crispd.sock"))
}

// connect waits until the runtime answers, and starts the proxy.
func (n *node) connect(socket string) {
	n.t.Helper()
	var err error
	n.conn, err = grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(n.t, err)
	n.answers()
	n.proxy, err = startProxy(filepath.Join(n.dir, "proxy.sock"), socket, recorded)
	check(n.t, err)
}

// answers waits until the runtime answers.
func (n *node) answers() {
	n.t.Helper()
	n.until("the runtime answers", time.Minute, func() bool {
		_, err := cri.NewRuntimeServiceClient(n.conn).Version(n.t.Context(), &cri.VersionRequest{})
		return err == nil
	})
}

// drive starts the driver.
func (n *node) drive() {
	n.t.Helper()
	n.ports = freePorts(n.t, 3)
	n.pods = fmt.Sprintf("http://127.0.0.1:%d/pods", n.ports[0])
	n.makeCgroups(podsCgroup)
	if n.driver != "kubeadm" { // which calls crispd directly and exits
		n.runDriver()
	}
}

func (n *node) runDriver() {
	n.t.Helper()
	ports, dir := n.ports, n.dir
	switch n.driver {
	case "kubelet":
		n.startKubelet(ports)
	case "agent":
		n.start("agent", program("crisp"), "agent", "--runtime-endpoint", "unix://"+n.proxy.socket, "--root", filepath.Join(dir, "root"),
			"--manifests", filepath.Join(dir, "manifests"), "--log-dir", filepath.Join(dir, "logs"), "--node-name", nodeName,
			"--resolv-conf", filepath.Join(dir, "resolv.conf"), "--read-only-address", fmt.Sprintf("127.0.0.1:%d", ports[0]), "--cgroup-root", podsCgroup, "--log-level", "debug",
			"--image-gc-high-threshold", "100", "--eviction-hard", "memory.available<100Mi")
	}
	n.until("the driver lists pods", time.Minute, func() bool { _, err := n.list(); return err == nil })
}

// program returns the path of one of crisp's programs, in CRISP_BIN or the tree's bin.
func program(name string) string {
	dir := os.Getenv("CRISP_BIN")
	if dir == "" {
		dir = "../../bin"
	}
	path, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		panic(err)
	}
	return path
}

// start starts a program that logs to a file in the node's directory.
func (n *node) start(name, path string, args ...string) {
	n.t.Helper()
	log, err := os.OpenFile(filepath.Join(n.dir, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	check(n.t, err)
	defer log.Close()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = n.dir
	cmd.Env = append(os.Environ(), "CONTAINERS_REGISTRIES_CONF="+filepath.Join(n.dir, "registries.conf"))
	check(n.t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	n.ended[name], n.cmds[name] = ended, cmd
}

func (n *node) stop(name string) {
	cmd := n.cmds[name]
	if cmd == nil {
		return
	}
	delete(n.cmds, name)
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-n.ended[name]:
	case <-time.After(slowness * 30 * time.Second):
		n.t.Errorf("%s did not exit on SIGTERM", name)
		_ = cmd.Process.Kill()
		<-n.ended[name]
	}
}

// kill kills a program with SIGKILL.
func (n *node) kill(name string) {
	n.t.Helper()
	cmd := n.cmds[name]
	delete(n.cmds, name)
	check(n.t, cmd.Process.Kill())
	<-n.ended[name]
}

// end stops and removes everything, except the logs if the test has failed.
func (n *node) end() {
	n.stop(n.driver)
	if n.proxy != nil {
		n.proxy.stop()
	}
	n.stop("crispd")
	n.stop("containerd")
	if n.conn != nil {
		n.conn.Close()
	}
	n.remember()
	out, err := exec.Command(program("crispd"), "wipe", "--all", "--root", filepath.Join(n.dir, "crispd"), "--state", filepath.Join(n.dir, "run")).CombinedOutput()
	if err != nil {
		n.t.Errorf("crispd wipe: %v\n%s", err, out)
	}
	unmountBelow(n.dir)
	n.removeCgroups(podsCgroup)
	if n.t.Failed() {
		n.t.Logf("the logs are kept in %s", n.dir)
		return
	}
	if err := os.RemoveAll(n.dir); err != nil {
		n.t.Error(err)
	}
}

func (n *node) write(name, text string) {
	n.t.Helper()
	check(n.t, os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o644))
}

// until waits until yes returns true, and otherwise fails with the ends of the logs.
func (n *node) until(what string, patience time.Duration, yes func() bool) {
	n.t.Helper()
	if !n.waits(patience, yes) {
		n.t.Fatalf("%s: not so after %v: %s\n%s", n.driver, patience, what, n.tails())
	}
}

func (n *node) waits(patience time.Duration, yes func() bool) bool {
	for deadline := time.Now().Add(slowness * patience); !yes(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

func (n *node) tails() string {
	var b strings.Builder
	for name := range n.cmds {
		data, err := os.ReadFile(filepath.Join(n.dir, name+".log"))
		lines := strings.SplitAfter(string(data), "\n")
		fmt.Fprintf(&b, "%s (%v):\n%s", name, err, strings.Join(lines[max(0, len(lines)-15):], ""))
	}
	return b.String()
}

// list returns the pods that the driver lists.
func (n *node) list() ([]v1.Pod, error) {
	client := http.Client{Timeout: slowness * 5 * time.Second}
	resp, err := client.Get(n.pods)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	var list v1.PodList
	err = json.NewDecoder(resp.Body).Decode(&list)
	return list.Items, err
}

// pod returns the pod with this name, to which the kubelet appends the node's name.
func (n *node) pod(name string) (*v1.Pod, error) {
	pods, err := n.list()
	for i := range pods {
		if strings.TrimSuffix(pods[i].Name, "-"+nodeName) == name {
			return &pods[i], nil
		}
	}
	return nil, err
}

// sandboxes lists the IDs of the pod's sandboxes; of all pods if name is "".
func (n *node) sandboxes(name string, readyOnly bool) ([]string, error) {
	resp, err := cri.NewRuntimeServiceClient(n.conn).ListPodSandbox(context.Background(), &cri.ListPodSandboxRequest{})
	var ids []string
	for _, s := range resp.GetItems() {
		if name != "" && strings.TrimSuffix(s.Metadata.Name, "-"+nodeName) != name || readyOnly && s.State != cri.PodSandboxState_SANDBOX_READY {
			continue
		}
		ids = append(ids, s.Id)
	}
	return ids, err
}

// load loads the test image into crispd: it contains only testbin.
func (n *node) load() {
	n.t.Helper()
	tags := []string{testImage, otherImage}
	for _, pod := range ownImages {
		tags = append(tags, ownImage(pod))
	}
	n.loadInto(program("crisp"), filepath.Join(n.dir, "crispd.sock"), tags...)
}

// loadInto loads the test image with these tags into the runtime at socket, using the program
// crisp.
func (n *node) loadInto(crisp, socket string, tags ...string) {
	n.t.Helper()
	archive := filepath.Join(n.t.TempDir(), "testbin.tar")
	check(n.t, os.WriteFile(archive, imageOf(n.t, n.testbin(), []string{"/testbin"}, tags...), 0o644))
	run(n.t, crisp, "image", "load", "--runtime-endpoint", "unix://"+socket, "-i", archive)
}

// testbin returns the program testbin. It builds it unless it is beside the other programs.
func (n *node) testbin() []byte {
	n.t.Helper()
	testbin := program("testbin")
	if _, err := os.Stat(testbin); err != nil {
		testbin = filepath.Join(n.dir, "testbin")
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", testbin, "./test/testbin")
		cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		if err != nil {
			n.t.Fatalf("build testbin: %v\n%s", err, out)
		}
	}
	data, err := os.ReadFile(testbin)
	check(n.t, err)
	return data
}

// imageOf returns a docker archive with the program as /testbin, and a passwd file.
func imageOf(t *testing.T, program []byte, entrypoint []string, tags ...string) []byte {
	pack := func(files map[string][]byte, order ...string) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, name := range order {
			check(t, w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(files[name]))}))
			_, err := w.Write(files[name])
			check(t, err)
		}
		check(t, w.Close())
		return b.Bytes()
	}
	layer := pack(map[string][]byte{"testbin": program, "etc/passwd": []byte("root:x:0:0::/:\n")}, "testbin", "etc/passwd")
	config, err := json.Marshal(map[string]any{
		"os": "linux", "architecture": runtime.GOARCH,
		"config": map[string]any{"Entrypoint": entrypoint, "Env": []string{"PATH=/"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	check(t, err)
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": tags, "Layers": []string{"layer.tar"}}})
	check(t, err)
	return pack(map[string][]byte{"config.json": config, "layer.tar": layer, "manifest.json": manifest}, "config.json", "layer.tar", "manifest.json")
}

func freePorts(t *testing.T, count int) (ports []int) {
	t.Helper()
	for range count {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		check(t, err)
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

// unmountBelow detaches mounts that a driver has left, such as a tmpfs.
func unmountBelow(dir string) {
	data, _ := os.ReadFile("/proc/self/mountinfo")
	lines := strings.Split(string(data), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if f := strings.Fields(lines[i]); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			_ = syscall.Unmount(f[4], syscall.MNT_DETACH)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
