package test

import (
	"bufio"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// crispd is stopped and started again, for example by an upgrade, or killed, during `kubectl run
// -i`. The client is disconnected without having closed its input, so a container with stdinOnce
// keeps its input open. The next client continues to type, and closes it.
func TestStoppedDaemonLeavesTheInputOfWhoIsAttached(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"stopped": syscall.SIGTERM, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			n, config := startNode(t)
			u := &unified{node: n, t: t}
			pod, err := n.sandboxConfig("p", []string{"host-network"})
			if err != nil {
				t.Fatal(err)
			}
			u.run(pod)
			created, err := n.runtime().CreateContainer(u.ctx(), &cri.CreateContainerRequest{
				PodSandboxId: u.ids["p"], SandboxConfig: pod,
				Config: &cri.ContainerConfig{
					Metadata: &cri.ContainerMetadata{Name: "ear"}, Image: &cri.ImageSpec{Image: testImage},
					Command: []string{"/testbin", "echo-stdin", "exit", "3"}, LogPath: "ear.log", Stdin: true, StdinOnce: true,
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			id := created.ContainerId
			if _, err := n.runtime().StartContainer(u.ctx(), &cri.StartContainerRequest{ContainerId: id}); err != nil {
				t.Fatal(err)
			}
			first := u.attach(id)
			first.hears("first\n")
			if err := n.stopDaemon(sig); err != nil && sig == syscall.SIGTERM {
				t.Fatal(err)
			}
			<-first.ended
			if err := n.start(config, nil); err != nil {
				t.Fatal(err)
			}
			st, err := n.runtime().ContainerStatus(u.ctx(), &cri.ContainerStatusRequest{ContainerId: id})
			if err != nil || st.Status.State != cri.ContainerState_CONTAINER_RUNNING {
				t.Fatalf("the container is %v, %v", st.GetStatus().GetState(), err)
			}
			second := u.attach(id)
			second.hears("second\n")
			second.stdin.Close()
			if err := <-second.ended; err != nil {
				t.Errorf("the second client got %v", err)
			}
			for st = nil; st.GetStatus().GetState() != cri.ContainerState_CONTAINER_EXITED; time.Sleep(20 * time.Millisecond) {
				if st, err = n.runtime().ContainerStatus(u.ctx(), &cri.ContainerStatusRequest{ContainerId: id}); err != nil {
					t.Fatal(err)
				}
			}
			if st.Status.ExitCode != 3 {
				t.Errorf("the container exited with %d", st.Status.ExitCode)
			}
			log, err := os.ReadFile(filepath.Join(n.dir, "logs", "p", "ear.log"))
			if got := strings.Count(string(log), "\n"); err != nil || got != 2 {
				t.Errorf("the log has %q, %v", log, err)
			}
		})
	}
}

// A typist is an attached client that types.
type typist struct {
	t     *testing.T
	stdin *io.PipeWriter
	out   *bufio.Reader
	ended chan error
}

func (u *unified) attach(id string) *typist {
	u.t.Helper()
	resp, err := u.runtime().Attach(u.ctx(), &cri.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		u.t.Fatal(err)
	}
	parsed, err := url.Parse(resp.Url)
	if err != nil {
		u.t.Fatal(err)
	}
	e, err := remotecommand.NewSPDYExecutor(&rest.Config{}, "POST", parsed)
	if err != nil {
		u.t.Fatal(err)
	}
	in, stdin := io.Pipe()
	heard, out := io.Pipe()
	u.t.Cleanup(func() { stdin.Close(); heard.Close() })
	a := &typist{u.t, stdin, bufio.NewReader(heard), make(chan error, 1)}
	go func() {
		a.ended <- e.StreamWithContext(u.t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: io.Discard})
	}()
	return a
}

// hears types a line and waits until the container has echoed it.
func (a *typist) hears(line string) {
	a.t.Helper()
	if _, err := io.WriteString(a.stdin, line); err != nil {
		a.t.Fatal(err)
	}
	if got, err := a.out.ReadString('\n'); got != line {
		a.t.Fatalf("the container says %q, %v", got, err)
	}
}
