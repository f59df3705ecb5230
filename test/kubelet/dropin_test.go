package kubelet

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// installedDropIn is the drop-in that the package installs for kubeadm's kubelet.
const installedDropIn = "/usr/share/crisp/kubelet.service.d/20-crisp.conf"

// cadvisorFlag is the argument of the kubelet that each way in docs/install.md adds.
const cadvisorFlag = "--containerd=/run/crisp/cadvisor.sock"

// kubeadmUnit has the kubelet's systemd unit as in Kubernetes' packages kubelet and kubeadm. Only
// kubeadm-flags.env differs, which kubeadm writes: without a kubeconfig the kubelet is standalone.
var kubeadmUnit = map[string]string{
	"/usr/lib/systemd/system/kubelet.service": `[Unit]
Description=kubelet: The Kubernetes Node Agent
Documentation=https://kubernetes.io/docs/
Wants=network-online.target
After=network-online.target

[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10

[Install]
WantedBy=multi-user.target
`,
	"/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": `[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`,
	"/etc/default/kubelet":               "KUBELET_EXTRA_ARGS=\n",
	"/var/lib/kubelet/kubeadm-flags.env": "KUBELET_KUBECONFIG_ARGS=\"\"\nKUBELET_KUBEADM_ARGS=\"--hostname-override=" + nodeName + "\"\n",
	"/var/lib/kubelet/config.yaml": `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/crisp/crisp.sock
cgroupDriver: systemd
staticPodPath: /etc/kubernetes/manifests
resolvConf: /etc/kubernetes/resolv.conf
volumePluginDir: /var/lib/kubelet/volume-plugins
makeIPTablesUtilChains: false
failSwapOn: false
registerNode: false
address: 127.0.0.1
readOnlyPort: 10255
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%", imagefs.inodesFree: "0%"}
`,
	"/etc/kubernetes/resolv.conf": "nameserver 192.0.2.53\n",
	"/etc/kubernetes/manifests/flagged.yaml": `apiVersion: v1
kind: Pod
metadata: {name: flagged}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: "` + testImage + `", imagePullPolicy: Never, args: [catch, sleep, for-ever]}]
`,
}

// The package's drop-in, installed as its own comment says, and KUBELET_EXTRA_ARGS both add the
// flag with which the metrics of systemd's kubelet name containers. Without the flag they name
// none, and crispd check reports that.
func TestKubeletDropIn(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it runs containers")
	}
	if !present("/run/systemd/system") {
		t.Skip("needs systemd, which runs the kubelet")
	}
	deb := os.Getenv("CRISP_DEB")
	if deb == "" {
		t.Skip("needs a machine of its own with crisp's package installed: make test-vm")
	}
	if !present(kubeletProgram()) {
		t.Skip("the kubelet is not built: make test-kubelet")
	}
	run(t, "dpkg", "-i", deb)
	if entries, err := os.ReadDir("/etc/systemd/system/kubelet.service.d"); err == nil {
		t.Fatalf("this machine has a kubelet of its own: %v", entries)
	}
	k := startService(t)

	k.settles(false)
	k.says("lacking", "names no pod")

	for _, command := range inComment(t, installedDropIn) {
		run(t, "sh", "-c", command)
	}
	k.settles(true)
	k.says("ok", "")

	check(t, os.RemoveAll("/etc/systemd/system/kubelet.service.d"))
	check(t, os.WriteFile("/etc/default/kubelet", []byte("KUBELET_EXTRA_ARGS="+cadvisorFlag+"\n"), 0o644))
	run(t, "sh", "-c", "systemctl daemon-reload && systemctl restart kubelet")
	k.settles(true)
}

// inComment returns the commands in a file's comment, which are indented.
func inComment(t *testing.T, path string) (commands []string) {
	t.Helper()
	data, err := os.ReadFile(path)
	check(t, err)
	for _, m := range regexp.MustCompile(`(?m)^#   (\S.*)$`).FindAllStringSubmatch(string(data), -1) {
		commands = append(commands, m[1])
	}
	if len(commands) == 0 || !strings.Contains(strings.Join(commands, "\n"), path) {
		t.Fatalf("%s does not say where to put it: %q", path, commands)
	}
	return commands
}

// A service is kubelet.service, with one pod.
type service struct{ *node }

// startService installs the kubelet's service on the runtime of the package. The end of the test
// removes all of it.
func startService(t *testing.T) *service {
	t.Helper()
	before := machine(t)
	t.Cleanup(func() {
		for path := range kubeadmUnit {
			_ = os.Remove(path)
		}
		_ = os.Remove("/usr/bin/kubelet")
		for _, dir := range []string{"/usr/lib/systemd/system/kubelet.service.d", "/etc/systemd/system/kubelet.service.d", "/etc/kubernetes"} {
			_ = os.RemoveAll(dir)
		}
		run(t, "systemctl", "daemon-reload")
		before.restore(t)
	})
	for path, text := range kubeadmUnit {
		check(t, os.MkdirAll(filepath.Dir(path), 0o755))
		check(t, os.WriteFile(path, []byte(text), 0o644))
	}
	check(t, os.Symlink(kubeletProgram(), "/usr/bin/kubelet"))
	s := &service{&node{t: t, driver: "kubelet.service", pods: "http://127.0.0.1:10255/pods"}}
	s.loadInto("crisp", "/run/crisp/crisp.sock", testImage)
	var err error
	s.conn, err = grpc.NewClient("unix:///run/crisp/crisp.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	t.Cleanup(s.end)
	run(t, "sh", "-c", "systemctl daemon-reload && systemctl start kubelet")
	return s
}

// end stops the kubelet once its pod is gone.
func (s *service) end() {
	if s.t.Failed() {
		out, _ := exec.Command("journalctl", "-u", "kubelet", "-n", "30", "--no-pager").Output()
		s.t.Logf("%s", out)
	}
	check(s.t, os.Remove("/etc/kubernetes/manifests/flagged.yaml"))
	// The kubelet collects garbage once a minute.
	s.until("its sandbox is removed", func() bool {
		left, err := s.sandboxes("", false)
		return err == nil && len(left) == 0
	})
	run(s.t, "systemctl", "stop", "kubelet", "kubepods.slice")
	check(s.t, s.conn.Close())
}

// settles waits until the kubelet shows the pod's container. If named is true the kubelet must have
// the flag, and its metrics must name the container and the pod; otherwise neither.
func (s *service) settles(named bool) {
	s.t.Helper()
	var args []string
	s.until("systemd has started the kubelet", func() bool {
		args = s.arguments()
		return args[0] == "/usr/bin/kubelet"
	})
	if has := slices.Contains(args, cadvisorFlag); has != named {
		s.t.Fatalf("kubelet.service runs %q: has the flag: %v, want %v", args, has, named)
	}
	if !slices.Contains(args, "--config=/var/lib/kubelet/config.yaml") {
		s.t.Fatalf("kubelet.service runs %q, and has lost its configuration", args)
	}
	var seen []string
	s.until("the kubelet shows the container", func() bool {
		text, err := s.fetch("/metrics/cadvisor")
		if id := s.container(); err == nil && id != "" {
			seen = regexp.MustCompile(`(?m)^container_memory_working_set_bytes\{container="(.*?)",id="[^"]*crisp-` + id + `\.scope",.*,pod="(.*?)"\} `).FindStringSubmatch(string(text))
		}
		return seen != nil
	})
	want := []string{"", ""}
	if named {
		want = []string{"app", "flagged-" + nodeName}
	}
	if !slices.Equal(seen[1:], want) {
		s.t.Errorf("the kubelet shows container and pod %q, want %q: %s", seen[1:], want, seen[0])
	}
	s.t.Logf("%q: %s", args, seen[0])
}

// arguments returns the arguments of the process that systemd has started.
func (s *service) arguments() []string {
	s.t.Helper()
	pid := strings.TrimSpace(run(s.t, "systemctl", "show", "kubelet.service", "-p", "MainPID", "--value"))
	data, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline")) // fails before it has started
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
}

// container returns the ID of the pod's container, "" if it is not running.
func (s *service) container() string {
	resp, err := cri.NewRuntimeServiceClient(s.conn).ListContainers(s.t.Context(), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}, LabelSelector: map[string]string{"io.kubernetes.pod.name": "flagged-" + nodeName}}})
	if err != nil || len(resp.Containers) != 1 {
		return ""
	}
	return resp.Containers[0].Id
}

// says checks the line of crispd check about the kubelet's metrics.
func (s *service) says(mark, follows string) {
	s.t.Helper()
	text := run(s.t, "crispd", "check")
	line := regexp.MustCompile(`(?m)^.*metrics of pods by the kubelet.*(?:\n\s{4,}.*)*`).FindString(text)
	if !strings.HasPrefix(strings.TrimSpace(line), mark) || !strings.Contains(line, follows) {
		s.t.Errorf("crispd check says %q, want %s and %q:\n%s", line, mark, follows, text)
	}
}

func (s *service) until(what string, yes func() bool) {
	s.t.Helper()
	s.node.until(what, 2*time.Minute, yes)
}

// run runs a command and returns its output.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return string(out)
}
