package main

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The processes that count as the kubelet of a cluster. Pods do not wait for a network with a
// standalone kubelet, crictl or the agent.
func TestKubeletOfACluster(t *testing.T) {
	for _, tt := range []struct {
		name, line string
		want       bool
	}{
		{"kubelet", "/usr/bin/kubelet --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml", true},
		{"kubelet", "kubelet --kubeconfig /etc/kubernetes/kubelet.conf", true},
		{"kubelet", "kubelet --bootstrap-kubeconfig /b", true},
		{"kubelet", "kubelet --config /var/lib/kubelet/config.yaml --kubeconfigs=x", false},
		{"kubelet", "", false},
		{"k3s-server", "/usr/local/bin/k3s server", true},
		{"k3s-agent", "/usr/local/bin/k3s agent", true},
		{"kubelite", "/snap/microk8s/1/kubelite --kubelet-args-file=/a", true},
		{"crictl", "crictl --kubeconfig=x pods", false},
		{"crisp", "crisp agent", false},
		{"", "", false},
	} {
		if got := ofCluster(tt.name, strings.Fields(tt.line)); got != tt.want {
			t.Errorf("%s, %q: %v", tt.name, tt.line, got)
		}
	}
}

// helper is the variable with the socket to which a process of this test binary connects, and stays
// connected.
const helper = "CRISPD_TEST_CONNECT"

func TestMain(m *testing.M) {
	if path := os.Getenv(helper); path != "" {
		conn, err := net.Dial("unix", path)
		if err != nil {
			os.Exit(1)
		}
		io.Copy(io.Discard, conn)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Pods wait from the time a cluster's kubelet connects until its last connection is closed. Other
// clients do not count.
func TestConnectedKubeletIsSeen(t *testing.T) {
	dir := t.TempDir()
	var k kubelets
	socket, err := new(files).listen(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	l := k.watch(socket)
	defer l.Close()
	connect := func(name string, args ...string) net.Conn {
		t.Helper()
		program := filepath.Join(dir, name)
		if err := os.Link("/proc/self/exe", program); err != nil {
			data, err := os.ReadFile("/proc/self/exe")
			if err == nil {
				err = os.WriteFile(program, data, 0o755)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), helper+"="+filepath.Join(dir, "s"))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			conn.Close()
			cmd.Wait()
			os.Remove(program)
		})
		return conn
	}
	connect("crictl", "--kubeconfig=x")
	connect("standalone")
	if got := k.awaited(); got != "" {
		t.Errorf("without a kubelet: %q", got)
	}
	first := connect("kubelet", "--kubeconfig=/etc/kubernetes/kubelet.conf")
	second := connect("k3s-agent")
	first.Close()
	if got := k.awaited(); !strings.Contains(got, "k3s-agent (process ") {
		t.Errorf("with one of two kubelets: %q", got)
	}
	second.Close()
	if got := k.awaited(); got != "" {
		t.Errorf("after the last kubelet: %q", got)
	}
}
