package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// crispd as a systemd service: processes that it has started are outside its service, and survive,
// with their logs and exit codes, when the service is stopped, restarted or killed.
func TestRunAsAService(t *testing.T) {
	if !testenv.Exists("/run/systemd/system") {
		t.Skip("systemd does not run this host")
	}
	n, config := startNode(t)
	u := &unified{node: n, t: t, config: config}
	if err := n.stopDaemon(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	unit := "crisptest-" + strconv.Itoa(os.Getpid()) + ".service"
	// As in packaging/systemd/crisp.service.in.
	start := []string{"--unit", unit, "-p", "Type=notify", "-p", "NotifyAccess=main", "-p", "KillMode=process", "-p", "Delegate=yes",
		filepath.Join(n.binaries.dir, "crispd"), "--config", config, "--root", n.root, "--state", n.state, "--socket", n.socket}
	service := func(command string, args ...string) {
		t.Helper()
		if out, err := exec.Command(command, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", command, strings.Join(args, " "), err, out)
		}
	}
	service("systemd-run", start...)
	defer exec.Command("systemctl", "stop", unit).Run()
	var err error
	if n.conn, err = grpc.NewClient("unix://"+n.socket, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	defer n.conn.Close()

	pod, err := n.sandboxConfig("p", []string{"host-network"})
	if err != nil {
		t.Fatal(err)
	}
	u.run(pod)
	counter, pid := u.begin("p", "counter", nil, "count", "-1", "20ms")
	quitter, _ := u.begin("p", "quitter", nil, "await", "/go", "exit", "7")
	executor, err := n.executorPid()
	if err != nil {
		t.Fatal(err)
	}
	inService := func() {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			procs, err := os.ReadFile("/sys/fs/cgroup/system.slice/" + unit + "/cgroup.procs")
			got := strings.Fields(string(procs))
			if err == nil && len(got) == 1 {
				return
			}
			if time.Now().After(deadline) { // crispd's calls of plugins take a moment
				t.Errorf("processes of the service are %v, %v", got, err)
				return
			}
		}
	}
	inService()

	service("systemctl", "restart", unit)
	inService()
	service("systemctl", "kill", "-s", "KILL", unit)
	for range 600 {
		if exec.Command("systemctl", "is-active", "-q", unit).Run() != nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	service("systemctl", "daemon-reload")
	// One container exits while there is no crispd.
	root := fmt.Sprintf("/proc/%d/root/go", u.processOf(t, quitter))
	if err := os.WriteFile(root, nil, 0o644); err != nil {
		t.Error(err)
	}
	exec.Command("systemctl", "reset-failed", unit).Run()
	service("systemd-run", start...)
	if now, err := n.executorPid(); err != nil || now != executor || u.pid(counter) != pid {
		t.Errorf("executor %d, container %d; they were %d and %d (err %v)", now, u.pid(counter), executor, pid, err)
	}
	ended := false
	for range 600 {
		resp, err := n.runtime().ContainerStatus(u.ctx(), &cri.ContainerStatusRequest{ContainerId: quitter})
		if err != nil {
			t.Fatal(err)
		}
		if s := resp.Status; s.State == cri.ContainerState_CONTAINER_EXITED {
			if ended = true; s.ExitCode != 7 {
				t.Errorf("the container that exited meanwhile has the exit code %d, %s", s.ExitCode, s.Message)
			}
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if !ended {
		t.Error("the exit of the container that exited meanwhile is not reported")
	}
	service("systemctl", "stop", unit)
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("after the stop of the service the container is gone: %v", err)
	}
	data, err := os.ReadFile(filepath.Join(n.dir, "logs", "p", "counter.log"))
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) != 4 || fields[3] != strconv.Itoa(lines) {
			t.Fatalf("line %d of the log is %q", lines, line)
		}
		lines++
	}
	if lines < 50 {
		t.Errorf("the log has %d lines", lines)
	}
}

// processOf finds a container's process by its cgroup, with no crispd to ask.
func (u *unified) processOf(t *testing.T, id string) int {
	t.Helper()
	dirs, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range dirs {
		if data, err := os.ReadFile(file); err == nil && strings.Contains(string(data), id) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return pid
		}
	}
	t.Fatalf("no process is in a cgroup of %s", id)
	return 0
}
