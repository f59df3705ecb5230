package test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// logged waits for a line of crispd's log with these values, and returns it. Values that
// are texts or times are compared by their beginning.
func (n *node) logged(t *testing.T, want map[string]string) map[string]any {
	t.Helper()
	for range 600 {
		for line := range bytes.Lines(read(t, filepath.Join(n.dir, "crispd.log"))) {
			var have map[string]any
			if json.Unmarshal(line, &have) != nil {
				continue
			}
			found := true
			for k, v := range want {
				s, _ := have[k].(string)
				found = found && strings.HasPrefix(s, v) && s != ""
			}
			if found {
				return have
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("no line with %v in\n%s", want, read(t, filepath.Join(n.dir, "crispd.log")))
	return nil
}

// restart restarts crispd with another configuration.
func (n *node) restart(t *testing.T, config, text string) {
	t.Helper()
	if err := n.stopDaemon(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := n.start(config, nil); err != nil {
		t.Fatal(err)
	}
}

// debug returns the output of crispd debug.
func (n *node) debug(t *testing.T, what string) string {
	t.Helper()
	out, err := exec.Command(filepath.Join(n.binaries.dir, "crispd"), "debug", what, "--root", n.root, "--state", n.state).CombinedOutput()
	if err != nil {
		t.Fatalf("crispd debug %s: %v\n%s", what, err, out)
	}
	return string(out)
}

// slowPlugin writes the configuration of a network whose only plugin takes most of a
// second, and longer while the file <dir>/hold exists.
func slowPlugin(t *testing.T, dir string) (config string) {
	t.Helper()
	for path, text := range map[string]string{
		"bin/slowpoke":     "#!/bin/sh\ncat >/dev/null\ncase $CNI_COMMAND in\nADD) sleep 0.7; while [ -e " + dir + "/hold ]; do sleep 0.05; done; echo '{\"cniVersion\":\"1.0.0\",\"interfaces\":[{\"name\":\"eth0\",\"sandbox\":\"/ns\"}],\"ips\":[{\"interface\":0,\"address\":\"10.99.0.2/24\"}]}';;\nVERSION) echo '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"1.0.0\"]}';;\nesac\n",
		"net.d/1.conflist": `{"cniVersion":"1.0.0","name":"slow","plugins":[{"type":"slowpoke"}]}`,
	} {
		file := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return "[cni]\nconf_dir = \"" + dir + "/net.d\"\nbin_dirs = [\"" + dir + "/bin\"]\n"
}

func (n *node) run(t *testing.T, ctx context.Context, name string, options ...string) string {
	t.Helper()
	if err := n.tryRun(ctx, name, options...); err != nil {
		t.Fatal(err)
	}
	return n.ids[name]
}

// remove removes pods while crispd has the configuration of their network.
func (n *node) remove(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := n.runtime().RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: n.ids[name]}); err != nil {
			t.Error(err)
		}
	}
}

func (n *node) tryRun(ctx context.Context, name string, options ...string) error {
	sb, err := n.sandboxConfig(name, options)
	if err != nil {
		return err
	}
	resp, err := n.runtime().RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: sb})
	if err == nil {
		n.ids[name], n.sandboxes[name] = resp.PodSandboxId, sb
	}
	return err
}

// The reason of a slow pod start is in one line of the log, in the metrics and, while the start is
// running, in the list of calls.
func TestSlowPluginIsNamed(t *testing.T) {
	n, config := startNode(t)
	dir := t.TempDir()
	n.restart(t, config, slowPlugin(t, dir))
	blocker := filepath.Join(dir, "hold")
	// begin runs a pod and returns when the list shows the call in its stage.
	begin := func(ctx context.Context, name string) (done chan error) {
		t.Helper()
		if err := os.WriteFile(blocker, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		done = make(chan error, 1)
		began := time.Now()
		go func() { done <- n.tryRun(ctx, name) }()
		for during := ""; !strings.Contains(during, "cni"); during = n.debug(t, "calls") {
			select {
			case err := <-done:
				t.Fatalf("the list has not shown the call in its stage: %v", err)
			default:
			}
		}
		time.Sleep(time.Since(began) / 10) // a line has the stages that took at least a twentieth of the call
		return done
	}
	release := func() {
		t.Helper()
		if err := os.Remove(blocker); err != nil {
			t.Fatal(err)
		}
	}
	done := begin(t.Context(), "web")
	release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	line := n.logged(t, map[string]string{"msg": "rpc done", "rpc": "RunPodSandbox", "sandbox": n.ids["web"]})
	for _, key := range []string{"took", "cni", "cni.slowpoke"} {
		text, _ := line[key].(string)
		if d, err := time.ParseDuration(text); err != nil || d < 700*time.Millisecond {
			t.Errorf("%s is %q in %v", key, text, line)
		}
	}
	metrics := n.debug(t, "metrics")
	for _, want := range []string{
		`crisp_rpc_duration_seconds_count{code="OK",rpc="RunPodSandbox"} 1`,
		`crisp_stage_duration_seconds_count{rpc="RunPodSandbox",stage="cni"} 1`,
		`crisp_stage_duration_seconds_count{rpc="RunPodSandbox",stage="cni.slowpoke"} 1`,
		`crisp_sandboxes{state="ready"} 1`, `crisp_containers{state="running"} 0`, `crisp_images 1`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("no %s in the metrics", want)
		}
	}

	// The error of a call that its client gives up names its stage, and the metrics count
	// it there.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done = begin(ctx, "late")
	cancel()
	if err := <-done; err == nil {
		t.Fatal("the call was not cut short")
	}
	if line := n.logged(t, map[string]string{"msg": "rpc failed", "rpc": "RunPodSandbox"}); line["cni"] == nil {
		t.Errorf("the stage is not in %v", line)
	}
	if want := `crisp_rpc_abandoned_total{rpc="RunPodSandbox",stage="cni"} 1`; !strings.Contains(n.debug(t, "metrics"), want) {
		t.Errorf("no %s in the metrics", want)
	}
	release()
	n.run(t, t.Context(), "late") // the repeated call gets the pod
	n.remove(t, "web", "late")
}

// SIGHUP applies the settings that can change while pods run, reports each key, and does
// nothing at all with an invalid file.
func TestReload(t *testing.T) {
	n, config := startNode(t)
	hangUp := func(text string) {
		t.Helper()
		if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := n.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	handlers := func() string {
		t.Helper()
		s, err := n.runtime().Status(t.Context(), &cri.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, h := range s.RuntimeHandlers {
			names = append(names, h.Name)
		}
		return strings.Join(names, " ")
	}
	id := n.run(t, t.Context(), "before", "host-network")
	metrics := filepath.Join(n.dir, "metrics.sock")
	hangUp("log_max_line = 100\n[log]\nlevel = \"debug\"\n[image]\npinned = [\"crisp.test/*\"]\n[metrics]\naddress = \"unix://" + metrics + "\"\n[handlers.strict]\ndefault_capabilities = []\n")
	n.logged(t, map[string]string{"msg": "configuration reloaded"})
	n.logged(t, map[string]string{"key": "log.level", "old": `"info"`, "new": `"debug"`, "takes": "at once", "at": config + ":3"})
	n.logged(t, map[string]string{"key": "log_max_line", "old": "16384", "new": "100", "takes": "needs a restart", "at": config + ":1"})
	if got := handlers(); !strings.Contains(got, "strict") {
		t.Errorf("handlers are %s", got)
	}
	images, err := cri.NewImageServiceClient(n.conn).ListImages(t.Context(), &cri.ListImagesRequest{})
	if err != nil || len(images.Images) != 1 || !images.Images[0].Pinned {
		t.Errorf("the image is not pinned: %v, %v", images, err)
	}
	if c, err := net.Dial("unix", metrics); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	if got := n.debug(t, "config"); !strings.Contains(got, "log_max_line = 16384") || !strings.Contains(got, `level = "debug"`) {
		t.Errorf("settings in force:\n%s", got)
	}

	n.expects("configuration not reloaded.*no_such_key")
	hangUp("[log]\nlevel = \"info\"\n\nno_such_key = 1\n")
	n.logged(t, map[string]string{"msg": "configuration not reloaded", "err": config + ":4"})
	if got := handlers(); !strings.Contains(got, "strict") {
		t.Errorf("after a bad file the handlers are %s", got)
	}
	hangUp("")
	n.logged(t, map[string]string{"key": "handlers.strict.engine", "old": `"libcontainer"`})
	if got := handlers(); strings.Contains(got, "strict") {
		t.Errorf("the handlers are %s", got)
	}
	if _, err := net.Dial("unix", metrics); err == nil {
		t.Error("metrics are still served where they were")
	}
	s, err := n.runtime().PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil || s.Status.State != cri.PodSandboxState_SANDBOX_READY {
		t.Errorf("the pod from before the reload: %v, %v", s, err)
	}
}

// A setting that cannot be applied at a reload is not reported as in force, and is tried
// again.
func TestReloadInPart(t *testing.T) {
	n, config := startNode(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := taken.Addr().String()
	if err := os.WriteFile(config, []byte("[log]\nlevel = \"debug\"\n[metrics]\naddress = \""+address+"\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	hangUp := func() {
		t.Helper()
		if err := n.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	hangUp()
	n.expects("configuration reloaded in part.*metrics.address")
	n.logged(t, map[string]string{"msg": "configuration reloaded in part", "err": "metrics.address: "})
	n.logged(t, map[string]string{"key": "metrics.address", "takes": "not taken"})
	n.logged(t, map[string]string{"key": "log.level", "takes": "at once"})
	if got := n.debug(t, "config"); strings.Contains(got, address) || !strings.Contains(got, `level = "debug"`) {
		t.Errorf("settings in force:\n%s", got)
	}
	taken.Close()
	hangUp()
	n.logged(t, map[string]string{"key": "metrics.address", "takes": "at once"})
	if c, err := net.Dial("tcp", address); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
}

// A signal during crispd's start waits, or shows where crispd hangs; crispd survives the
// end of the program that reads its log.
func TestSignalsAtTheStart(t *testing.T) {
	n, config := startNode(t)
	if err := n.stopDaemon(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	// crispd hangs when it reads a profile that is a fifo, and again at each reload.
	profile := filepath.Join(n.dir, "profile")
	if err := syscall.Mkfifo(profile, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, []byte("seccomp_profile = \""+profile+"\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	lines, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(n.binaries.dir, "crispd"), "--config", config, "--root", n.root, "--state", n.state)
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stderr.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer cmd.Process.Kill()
	await := func(what string, seen func() bool) {
		t.Helper()
		for !seen() {
			select {
			case err := <-ended:
				t.Fatalf("%s: crispd has ended: %v", what, err)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	exists := func(name string) func() bool {
		return func() bool { _, err := os.Stat(filepath.Join(n.state, name)); return err == nil }
	}
	await("its socket", exists("crisp.sock"))
	for _, signal := range []os.Signal{syscall.SIGHUP, syscall.SIGUSR1} {
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
	}
	await("the goroutines", exists("goroutines.txt"))
	if err := os.WriteFile(profile, []byte(`{"defaultAction": "SCMP_ACT_ALLOW"}`), 0); err != nil {
		t.Fatal(err)
	}
	scanner := bufio.NewScanner(lines)
	wait := func(want string) {
		t.Helper()
		for scanner.Scan() {
			if strings.Contains(scanner.Text(), want) {
				return
			}
		}
		t.Fatalf("no line %q", want)
	}
	wait("crispd serves")
	if err := os.WriteFile(profile, []byte(`{"defaultAction": "SCMP_ACT_ALLOW"}`), 0); err != nil {
		t.Fatal(err)
	}
	wait("configuration reloaded")
	lines.Close()
	if n.conn, err = grpc.NewClient("unix://"+n.socket, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	n.run(t, t.Context(), "unheard", "host-network")
	n.remove(t, "unheard")
	n.conn.Close()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("its end: %v", err)
	}
	if err := os.WriteFile(config, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := n.start(config, nil); err != nil {
		t.Fatal(err)
	}
}

// Only root has access to the debug interface of a running crispd.
func TestDebugSocket(t *testing.T) {
	n, _ := startNode(t)
	for _, name := range []string{"debug.sock", "cadvisor.sock"} {
		if info, err := os.Stat(filepath.Join(n.state, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want mode 0600", name, info, err)
		}
	}
	if got := n.debug(t, "goroutines"); !strings.Contains(got, "main.main()") {
		t.Errorf("goroutines:\n%.500s", got)
	}
	if got := n.debug(t, "heap"); !strings.HasPrefix(got, "\x1f\x8b") {
		t.Errorf("the heap profile begins with %.20q", got)
	}
}

// bytesCodec leaves messages in their wire format.
type bytesCodec struct{}

func (bytesCodec) Marshal(any) ([]byte, error) { return nil, nil }
func (bytesCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}
func (bytesCodec) Name() string { return "proto" }

// A call that is part of its client's trace is a span of that trace, with its stages as
// child spans; other calls are not exported.
func TestTraces(t *testing.T) {
	n, config := startNode(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var got []byte
	collector := grpc.NewServer(grpc.ForceServerCodec(bytesCodec{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		var msg []byte
		if err := s.RecvMsg(&msg); err != nil {
			return err
		}
		mu.Lock()
		got = append(got, msg...)
		mu.Unlock()
		return s.SendMsg(nil)
	}))
	go collector.Serve(l)
	defer collector.Stop()
	n.restart(t, config, slowPlugin(t, t.TempDir())+"[tracing]\nendpoint = \""+l.Addr().String()+"\"\n")

	const trace = "\x0a\xf7\x65\x19\x16\xcd\x43\xdd\x84\x48\xeb\x21\x1c\x80\x31\x9c"
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	n.run(t, ctx, "traced")
	n.run(t, t.Context(), "untraced", "host-network")
	n.logged(t, map[string]string{"rpc": "RunPodSandbox", "trace": "0af7651916cd43dd8448eb211c80319c"})
	if err := n.stopDaemon(syscall.SIGTERM); err != nil { // crispd sends the remaining spans
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{trace, "\xb7\xad\x6b\x71\x69\x20\x33\x31", "RunPodSandbox", "cni.slowpoke", "namespaces", n.ids["traced"], "crispd"} {
		if !bytes.Contains(got, []byte(want)) {
			t.Errorf("no %q was sent", want)
		}
	}
	if bytes.Contains(got, []byte(n.ids["untraced"])) {
		t.Error("a call outside of any trace was sent")
	}
	if err := n.start(config, nil); err != nil {
		t.Fatal(err)
	}
	n.remove(t, "traced", "untraced")
}

// After crispd is killed right after it has started the executor, a wipe leaves no
// executor.
func TestWipeOfAStartingExecutor(t *testing.T) {
	n, config := startNode(t)
	for range 5 {
		if err := n.stopDaemon(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := n.wipe(); err != nil {
			t.Fatal(err)
		}
		n.wiped = false
		out, err := os.Create(filepath.Join(n.dir, "killed.log"))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(filepath.Join(n.binaries.dir, "crispd"), "--config", config, "--root", n.root, "--state", n.state)
		cmd.Stderr = out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		out.Close()
		for !bytes.Contains(read(t, filepath.Join(n.dir, "killed.log")), []byte("executor was started")) {
			time.Sleep(time.Millisecond)
		}
		cmd.Process.Kill()
		cmd.Wait()
		if err := n.wipe(); err != nil {
			t.Fatal(err)
		}
		// An executor that has answered the wipe exits a moment later; with the race
		// detector, a second later.
		for deadline := time.Now().Add(untilTime); ; time.Sleep(10 * time.Millisecond) {
			pid, err := n.executorPid()
			if err != nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("executor %d is left", pid)
			}
		}
		if err := n.start(config, nil); err != nil {
			t.Fatal(err)
		}
	}
}
