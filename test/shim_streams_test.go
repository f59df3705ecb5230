package test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// sizes are the sizes of a client's terminal, one after another.
type sizes chan remotecommand.TerminalSize

// Next implements remotecommand.TerminalSizeQueue.
func (s sizes) Next() *remotecommand.TerminalSize {
	if size, ok := <-s; ok {
		return &size
	}
	return nil
}

// startShimNode starts a node whose handler "shim" is runc's, and a pod of it.
func startShimNode(t *testing.T) (*unified, string) {
	testenv.Need(t, "shims")
	n, config := startNode(t, withShim(t, "shims"))
	u := &unified{node: n, t: t}
	pod, err := n.sandboxConfig("p", nil)
	if err != nil {
		t.Fatal(err)
	}
	u.runWith(pod, "shim")
	return u, config
}

// beginIn starts a container with stdin in the pod p.
func (u *unified) beginIn(name string, tty bool, command ...string) string {
	u.t.Helper()
	resp, err := u.runtime().CreateContainer(u.ctx(), &cri.CreateContainerRequest{
		PodSandboxId: u.ids["p"], SandboxConfig: u.sandboxes["p"],
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: name}, Image: &cri.ImageSpec{Image: testImage},
			Command: append([]string{"/testbin"}, command...), LogPath: name + ".log", Stdin: true, Tty: tty,
		},
	})
	if err != nil {
		u.t.Fatal(err)
	}
	if _, err := u.runtime().StartContainer(u.ctx(), &cri.StartContainerRequest{ContainerId: resp.ContainerId}); err != nil {
		u.t.Fatal(err)
	}
	return resp.ContainerId
}

// executorOf returns a client of a streaming URL.
func executorOf(t *testing.T, at string) remotecommand.Executor {
	t.Helper()
	parsed, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	e, err := remotecommand.NewSPDYExecutor(&rest.Config{}, "POST", parsed)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// The streams of a shim's containers are those of others: exec with a terminal and its sizes,
// attach with and without one, also after both daemons were killed, and port-forward.
func TestShimStreams(t *testing.T) {
	testenv.Need(t, "shims")
	u, config := startShimNode(t)
	plain := u.beginIn("plain", false, "echo-stdin")
	screen := u.beginIn("screen", true, "await-size", "123", "45", "print", "sized", "echo-stdin")
	server := u.beginIn("server", false, "http", "127.0.0.1:8080", "hello", "print", "ready", "sleep", "for-ever")

	x, err := u.runtime().Exec(u.ctx(), &cri.ExecRequest{ContainerId: server, Cmd: []string{"/testbin", "await-size", "90", "30", "print", "first", "await-size", "91", "31", "print", "second", "exit", "4"}, Stdin: true, Stdout: true, Tty: true})
	if err != nil {
		t.Fatal(err)
	}
	said, out := io.Pipe()
	size := make(sizes, 2)
	size <- remotecommand.TerminalSize{Width: 90, Height: 30}
	ended := make(chan error, 1)
	go func() {
		in, _ := io.Pipe()
		ended <- executorOf(t, x.Url).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: out, Tty: true, TerminalSizeQueue: size})
	}()
	lines := bufio.NewReader(said)
	for i, want := range []string{"first\r\n", "second\r\n"} {
		if got, err := lines.ReadString('\n'); got != want {
			t.Fatalf("the terminal has %q, %v, want %q", got, err, want)
		}
		if i == 0 {
			size <- remotecommand.TerminalSize{Width: 91, Height: 31}
		}
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "exit code 4") {
		t.Errorf("exec with a terminal: %v", err)
	}
	close(size)

	u.attach(plain).hears("one\n")
	for _, both := range []bool{false, true} {
		if both {
			pid, err := u.executorPid()
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		if err := u.stopDaemon(syscall.SIGKILL); err != nil && !strings.Contains(err.Error(), "killed") {
			t.Fatal(err)
		}
		if err := u.start(config, nil); err != nil {
			t.Fatal(err)
		}
		u.attach(plain).hears("again\n")
	}
	u.attachScreen(screen)
	u.forward()
}

// attachScreen attaches to a container with a terminal, which waits for its size.
func (u *unified) attachScreen(id string) {
	u.t.Helper()
	a, err := u.runtime().Attach(u.ctx(), &cri.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Tty: true})
	if err != nil {
		u.t.Fatal(err)
	}
	said, out := io.Pipe()
	in, typed := io.Pipe()
	size := make(sizes, 1)
	size <- remotecommand.TerminalSize{Width: 123, Height: 45}
	go executorOf(u.t, a.Url).StreamWithContext(u.t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: out, Tty: true, TerminalSizeQueue: size})
	lines := bufio.NewReader(said)
	if got, err := lines.ReadString('\n'); got != "sized\r\n" {
		u.t.Fatalf("the terminal has %q, %v", got, err)
	}
	if _, err := io.WriteString(typed, "typed\n"); err != nil {
		u.t.Fatal(err)
	}
	if got, err := lines.ReadString('\n'); got != "typed\r\n" { // the terminal's echo
		u.t.Errorf("the terminal has %q, %v", got, err)
	}
}

// forward forwards a port to the pod p, whose server listens only on its loopback.
func (u *unified) forward() {
	u.t.Helper()
	resp, err := u.runtime().PortForward(u.ctx(), &cri.PortForwardRequest{PodSandboxId: u.ids["p"]})
	if err != nil {
		u.t.Fatal(err)
	}
	at, err := url.Parse(resp.Url)
	if err != nil {
		u.t.Fatal(err)
	}
	round, upgrade, err := spdy.RoundTripperFor(&rest.Config{})
	if err != nil {
		u.t.Fatal(err)
	}
	ready, stop := make(chan struct{}), make(chan struct{})
	f, err := portforward.New(spdy.NewDialer(upgrade, &http.Client{Transport: round}, "POST", at), []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		u.t.Fatal(err)
	}
	go f.ForwardPorts()
	defer close(stop)
	<-ready
	ports, err := f.GetPorts()
	if err != nil {
		u.t.Fatal(err)
	}
	client := http.Client{Timeout: 20 * time.Second}
	answer, err := client.Get("http://" + net.JoinHostPort("127.0.0.1", fmt.Sprint(ports[0].Local)))
	if err != nil {
		u.t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); !strings.Contains(string(body), "hello") {
		u.t.Errorf("the forwarded port answers %q, %v", body, err)
	}
}
