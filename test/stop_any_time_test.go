package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// hangingBoth is a CNI plugin that hangs in the commands that the file %[1]s names. If it
// says "slow", DEL takes longer than calls may when crispd ends, and not as long as crispd may.
const hangingBoth = `#!/bin/sh
grep -q "$CNI_COMMAND" %[1]s && { trap "" TERM; while :; do sleep 3600; done; }
grep -q slow %[1]s && [ $CNI_COMMAND = DEL ] && sleep 6
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
ADD) echo '{"cniVersion":"1.0.0","ips":[{"address":"10.99.0.2/24"}]}' ;;
esac
`

// deafPlugin is an NRI plugin that does not answer about containers.
type deafPlugin struct {
	joined chan struct{}
	hang   <-chan struct{}
}

func (p deafPlugin) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	close(p.joined)
	return nil, nil
}

func (p deafPlugin) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	<-p.hang
	return nil, nil, nil
}

func (p deafPlugin) UpdateContainer(context.Context, *api.PodSandbox, *api.Container, *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	<-p.hang
	return nil, nil
}

// join connects the plugin.
func (p deafPlugin) join(t *testing.T, n *node) error {
	s, err := stub.New(p, stub.WithPluginName("deaf"), stub.WithPluginIdx("10"), stub.WithSocketPath(filepath.Join(n.state, "nri.sock")), stub.WithOnClose(func() {}))
	if err == nil {
		err = s.Start(context.Background())
	}
	if err == nil {
		t.Cleanup(s.Stop)
		<-p.joined
	}
	return err
}

// deafWriter is a client's end that reads nothing.
type deafWriter struct{ hang <-chan struct{} }

func (w deafWriter) Write([]byte) (int, error) { <-w.hang; return 0, io.ErrClosedPipe }

// crispd is stopped while a call of each kind is under way whose other side hangs: a plugin, a
// hook, a registry, a command, or a client that reads nothing. It ends by itself, the next one takes
// over, and everything can be removed.
func TestCrispdEndsWhateverRuns(t *testing.T) {
	var hangs, hook string
	// The undoing of a call hangs, too. crispd gives up, as if it had been killed.
	const forced = "RunPodSandbox, CNI ADD and DEL"
	const noDisk = forced + ", and the disk for the stacks"
	n, config := startNode(t, func(n *node, config string) error {
		hangs, hook = filepath.Join(n.work, "hangs"), filepath.Join(n.work, "hooks.d", "a.json")
		for path, text := range map[string]string{
			"hangs":                     "",
			"bin/hanging":               fmt.Sprintf(hangingBoth, hangs),
			"net.d/10-hanging.conflist": `{"cniVersion":"1.0.0","name":"hanging","plugins":[{"type":"hanging"}]}`,
			"hook":                      "#!/bin/sh\nwhile :; do sleep 3600; done\n",
			"hooks.d/none":              "",
		} {
			path = filepath.Join(n.work, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
				return err
			}
		}
		return os.WriteFile(config, fmt.Appendf(nil, "hooks_dir = [%q]\n[cni]\nconf_dir = %q\nbin_dirs = [%q]\n[nri]\nenabled = true\n",
			n.work+"/hooks.d", n.work+"/net.d", n.work+"/bin"), 0o644)
	})
	n.expects("crispd ended before its work did")
	u := &unified{node: n, t: t}
	pod, err := n.sandboxConfig("p", []string{"host-network"})
	if err != nil {
		t.Fatal(err)
	}
	u.run(pod)
	box, _ := u.begin("p", "box", nil, "ignore-term", "sleep", "for-ever")
	hang := make(chan struct{})
	defer close(hang)
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-hang }))
	defer registry.CloseClientConnections()
	container := func(name string) *cri.CreateContainerRequest {
		return &cri.CreateContainerRequest{PodSandboxId: u.ids["p"], SandboxConfig: pod, Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: name}, Image: &cri.ImageSpec{Image: testImage}, Command: []string{"/testbin", "sleep", "for-ever"},
		}}
	}
	stream := func(at string, o remotecommand.StreamOptions) error {
		parsed, err := url.Parse(at)
		if err != nil {
			return err
		}
		e, err := remotecommand.NewSPDYExecutor(&rest.Config{}, "POST", parsed)
		if err != nil {
			return err
		}
		return e.StreamWithContext(t.Context(), o)
	}
	// delHangs runs a pod whose detaching will hang.
	delHangs := func(name string) (id string, err error) {
		sb, err := n.sandboxConfig(name, nil)
		if err != nil {
			return "", err
		}
		reply, err := n.runtime().RunPodSandbox(u.ctx(), &cri.RunPodSandboxRequest{Config: sb})
		if err != nil {
			return "", err
		}
		os.WriteFile(hangs, []byte("DEL"), 0o644)
		return reply.PodSandboxId, nil
	}
	run := func(name string) error {
		sb, err := n.sandboxConfig(name, nil)
		if err == nil {
			_, err = n.runtime().RunPodSandbox(u.ctx(), &cri.RunPodSandboxRequest{Config: sb})
		}
		return err
	}
	load := func() (wait func() error, err error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(n.binaries.dir, "crisp"), "--runtime-endpoint", "unix://"+n.socket, "image", "load", "-i", "/dev/stdin")
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err == nil {
			_, err = io.WriteString(in, "begin")
		}
		return cmd.Wait, err
	}
	stacks := filepath.Join(n.state, "goroutines.txt")
	flood := []string{"/testbin", "flood", "1048576"}
	for _, call := range []struct {
		what string
		rpc  string // as the debug socket shows it; "" = begin returns when the call is under way
		// begin makes the call, in a goroutine of its own.
		begin func() error
	}{
		{"RunPodSandbox, CNI ADD", "RunPodSandbox", func() error {
			os.WriteFile(hangs, []byte("ADD"), 0o644)
			return run("add")
		}},
		{"RunPodSandbox, CNI ADD and a slow DEL, beside Load", "RunPodSandbox", func() error {
			wait, err := load()
			if err != nil {
				return err
			}
			t.Cleanup(func() { wait() })
			n.awaitCall(t, "Load", nil)
			os.WriteFile(hangs, []byte("ADD slow"), 0o644)
			return run("slow")
		}},
		{forced, "RunPodSandbox", func() error {
			os.WriteFile(hangs, []byte("ADD DEL"), 0o644)
			return run("both")
		}},
		{noDisk, "RunPodSandbox", func() error {
			if err := errors.Join(os.Remove(stacks), unix.Mkfifo(stacks, 0o600)); err != nil {
				return err
			}
			os.WriteFile(hangs, []byte("ADD DEL"), 0o644)
			return run("disk")
		}},
		{"StopPodSandbox, CNI DEL", "StopPodSandbox", func() error {
			id, err := delHangs("del")
			if err == nil {
				_, err = n.runtime().StopPodSandbox(u.ctx(), &cri.StopPodSandboxRequest{PodSandboxId: id})
			}
			return err
		}},
		{"CreateContainer, NRI plugin", "CreateContainer", func() error {
			err := deafPlugin{make(chan struct{}), hang}.join(t, n)
			if err == nil {
				_, err = n.runtime().CreateContainer(u.ctx(), container("nri"))
			}
			return err
		}},
		{"UpdateContainerResources, NRI plugin", "UpdateContainerResources", func() error {
			err := deafPlugin{make(chan struct{}), hang}.join(t, n)
			if err == nil {
				_, err = n.runtime().UpdateContainerResources(u.ctx(), &cri.UpdateContainerResourcesRequest{ContainerId: box, Linux: &cri.LinuxContainerResources{CpuShares: 200}})
			}
			return err
		}},
		{"RemovePodSandbox, CNI DEL", "RemovePodSandbox", func() error {
			id, err := delHangs("rm")
			if err == nil {
				_, err = n.runtime().RemovePodSandbox(u.ctx(), &cri.RemovePodSandboxRequest{PodSandboxId: id})
			}
			return err
		}},
		{"StartContainer, hook", "StartContainer", func() error {
			os.WriteFile(hook, fmt.Appendf(nil, `{"version":"1.0.0","hook":{"path":%q},"when":{"always":true},"stages":["createRuntime"]}`, n.work+"/hook"), 0o644)
			created, err := n.runtime().CreateContainer(u.ctx(), container("hook"))
			os.Remove(hook)
			if err != nil {
				return err
			}
			_, err = n.runtime().StartContainer(u.ctx(), &cri.StartContainerRequest{ContainerId: created.ContainerId})
			return err
		}},
		{"StopContainer, deaf program", "StopContainer", func() error {
			_, err := n.runtime().StopContainer(u.ctx(), &cri.StopContainerRequest{ContainerId: box, Timeout: 3600})
			return err
		}},
		{"PullImage, registry", "PullImage", func() error {
			ref := strings.TrimPrefix(registry.URL, "http://") + "/slow:1"
			text := fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", strings.TrimPrefix(registry.URL, "http://"))
			os.WriteFile(filepath.Join(n.dir, "registries.conf"), []byte(text), 0o644)
			_, err := cri.NewImageServiceClient(n.conn).PullImage(u.ctx(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}})
			return err
		}},
		{"ExecSync", "ExecSync", func() error {
			_, err := n.runtime().ExecSync(u.ctx(), &cri.ExecSyncRequest{ContainerId: box, Cmd: []string{"/testbin", "ignore-term", "sleep", "for-ever"}})
			return err
		}},
		{"exec, client that reads nothing", "", func() error {
			resp, err := n.runtime().Exec(u.ctx(), &cri.ExecRequest{ContainerId: box, Cmd: flood, Stdout: true})
			if err != nil {
				return err
			}
			go stream(resp.Url, remotecommand.StreamOptions{Stdout: deafWriter{hang}})
			return nil
		}},
		{"attach", "", func() error {
			resp, err := n.runtime().Attach(u.ctx(), &cri.AttachRequest{ContainerId: box, Stdout: true})
			if err != nil {
				return err
			}
			go stream(resp.Url, remotecommand.StreamOptions{Stdout: deafWriter{hang}})
			return nil
		}},
		{"port-forward to a program that is silent", "", func() error {
			l, err := net.Listen("tcp", "127.0.0.1:0") // the pod has the node's network
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
			resp, err := n.runtime().PortForward(u.ctx(), &cri.PortForwardRequest{PodSandboxId: u.ids["p"]})
			if err != nil {
				return err
			}
			at, err := url.Parse(resp.Url)
			if err != nil {
				return err
			}
			round, upgrade, err := spdy.RoundTripperFor(&rest.Config{})
			if err != nil {
				return err
			}
			ready := make(chan struct{})
			_, port, _ := net.SplitHostPort(l.Addr().String())
			f, err := portforward.New(spdy.NewDialer(upgrade, &http.Client{Transport: round}, "POST", at), []string{"0:" + port}, hang, ready, io.Discard, io.Discard)
			if err != nil {
				return err
			}
			go f.ForwardPorts()
			<-ready
			ports, err := f.GetPorts()
			if err != nil {
				return err
			}
			conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
			if err != nil {
				return err
			}
			t.Cleanup(func() { conn.Close() })
			_, err = l.Accept()
			return err
		}},
		{"GetContainerEvents, client that reads nothing", "GetContainerEvents", func() error {
			_, err := n.runtime().GetContainerEvents(context.Background(), &cri.GetEventsRequest{})
			if err == nil {
				<-hang
			}
			return err
		}},
		{"Load, client that sends nothing more", "Load", func() error {
			wait, err := load()
			if err != nil {
				return err
			}
			return wait()
		}},
		{"profile on the debug socket", "", func() error {
			conn, err := net.Dial("unix", filepath.Join(n.state, "debug.sock"))
			if err != nil {
				return err
			}
			t.Cleanup(func() { conn.Close() })
			_, err = io.WriteString(conn, "GET /debug/pprof/trace?seconds=3600 HTTP/1.1\r\nHost: x\r\n\r\n")
			return err
		}},
	} {
		t.Run(call.what, func(t *testing.T) {
			ended := make(chan error, 1)
			go func() { ended <- call.begin() }()
			n.awaitCall(t, call.rpc, ended)
			if err := n.stopDaemon(syscall.SIGTERM); (err != nil) != strings.HasPrefix(call.what, forced) {
				t.Error(err)
			}
			if call.what == noDisk {
				os.Remove(stacks)
			}
			if err := os.WriteFile(hangs, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := n.start(config, nil); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// awaitCall waits until a call is under way, by the debug socket; rpc "" = it is once begun.
func (n *node) awaitCall(t *testing.T, rpc string, begun <-chan error) {
	t.Helper()
	if rpc == "" {
		if err := <-begun; err != nil {
			t.Fatal(err)
		}
		return
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(n.state, "debug.sock"))
	}}}
	for {
		resp, err := client.Get("http://crispd/calls")
		if err != nil {
			t.Fatal(err)
		}
		calls, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(calls), rpc) {
			time.Sleep(100 * time.Millisecond) // to where it hangs
			return
		}
		select {
		case err := <-begun:
			t.Fatalf("the call has ended: %v", errors.Join(err))
		case <-time.After(10 * time.Millisecond):
		}
	}
}
