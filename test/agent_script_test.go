package test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// A scriptAgent is the running agent of a script.
type scriptAgent struct {
	cmd    *exec.Cmd
	exited chan error
}

func (n *node) agentRoot() string { return filepath.Join(n.dir, "agent") }

func (n *node) manifests() string { return filepath.Join(n.dir, "manifests") }

// agentCmd is: agent start [FLAG...] | begin | stop | kill | restart | disk MIB [INODES] | fill | free | patch POD[/SUBRESOURCE] FILE
func (n *node) agentCmd(ts *testscript.TestScript, args []string) error {
	switch {
	case len(args) >= 1 && args[0] == "start":
		n.agentFlags = args[1:]
		return n.startAgent()
	case len(args) == 1 && args[0] == "begin":
		return n.beginAgent()
	case len(args) == 1 && args[0] == "stop":
		return n.endAgent(syscall.SIGTERM)
	case len(args) == 1 && args[0] == "kill":
		return n.endAgent(syscall.SIGKILL)
	case len(args) == 1 && args[0] == "restart":
		return errors.Join(n.endAgent(syscall.SIGKILL), n.startAgent())
	case len(args) >= 2 && args[0] == "disk":
		return n.mountDisk(n.agentRoot(), args[1:])
	case len(args) == 1 && args[0] == "fill":
		return fillDisk(n.agentRoot())
	case len(args) == 1 && args[0] == "free":
		return freeDisk(n.agentRoot())
	case len(args) == 3 && args[0] == "patch":
		return n.patchPod(args[1], ts.ReadFile(args[2]))
	}
	return errUsage
}

// beginAgent starts an agent with the flags of the last one, and does not wait until it answers:
// "crisp get" then tells what the runtime has, and other verbs fail.
func (n *node) beginAgent() error {
	if n.agent != nil {
		return errors.New("the agent runs already")
	}
	cmd, err := n.agentProgram(n.manifests(), n.agentFlags)
	if err != nil {
		return err
	}
	n.agent = &scriptAgent{cmd: cmd, exited: make(chan error, 1)}
	go func(a *scriptAgent) { a.exited <- cmd.Wait() }(n.agent)
	return nil
}

// startAgent is beginAgent, and returns when the agent answers.
func (n *node) startAgent() error {
	if err := n.beginAgent(); err != nil {
		return err
	}
	for {
		if conn, err := net.Dial("unix", filepath.Join(n.agentRoot(), "agent.sock")); err == nil {
			return conn.Close()
		}
		select {
		case err := <-n.agent.exited:
			n.agent = nil
			return fmt.Errorf("the agent ended: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// endAgent sends the agent a signal and waits until it has exited.
func (n *node) endAgent(sig syscall.Signal) error {
	if n.agent == nil {
		return errors.New("the agent does not run")
	}
	a := n.agent
	n.agent = nil
	if err := a.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("the agent ended by itself: %w", err)
	}
	select {
	case err := <-a.exited:
		if sig == syscall.SIGTERM && err != nil {
			return fmt.Errorf("the agent ended with %w", err)
		}
		return nil
	case <-time.After(untilTime):
		return errors.Join(errors.New("the agent does not end"), a.cmd.Process.Kill())
	}
}

// withoutManifests removes all manifests, waits until their pods are gone, and ends the
// agent.
func (n *node) withoutManifests() error {
	paths, err := filepath.Glob(filepath.Join(n.manifests(), "*"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	for deadline := time.Now().Add(untilTime); ; time.Sleep(20 * time.Millisecond) {
		left, err := n.agentPods()
		if err == nil && len(left) == 0 {
			return n.endAgent(syscall.SIGTERM)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("without manifests the agent still has %q, %w", left, err)
		}
	}
}

// agentPods returns the names of the pods that have files of the agent's or a sandbox in
// the runtime.
func (n *node) agentPods() (names []string, err error) {
	files, err := os.ReadDir(filepath.Join(n.agentRoot(), "pods"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		names = append(names, f.Name())
	}
	sandboxes, err := n.runtime().ListPodSandbox(context.Background(), &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	for _, sb := range sandboxes.Items {
		if name := sb.Labels["io.kubernetes.pod.name"]; name != "" {
			names = append(names, name)
		}
	}
	return names, nil
}

// patchPod patches a pod, or a subresource of it, through the agent's API.
func (n *node) patchPod(path, patch string) error {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(n.agentRoot(), "agent.sock"))
	}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequest(http.MethodPatch, "http://agent/api/v1/namespaces/default/pods/"+path, strings.NewReader(patch))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var text bytes.Buffer
		_, err := text.ReadFrom(resp.Body)
		return errors.Join(fmt.Errorf("%s: %s", resp.Status, text.String()), err)
	}
	return nil
}

// variable matches a script's variable in a manifest. "$(NAME)" is Kubernetes' own.
var variable = regexp.MustCompile(`\$[A-Z_]+`)

// expanded returns a file of the script with its variables filled in. The test image is in
// no registry, so it must not be pulled.
func expanded(ts *testscript.TestScript, file string) string {
	text := strings.ReplaceAll(ts.ReadFile(file), "image: $IMAGE", "image: $IMAGE, imagePullPolicy: Never")
	return variable.ReplaceAllStringFunc(text, func(name string) string { return ts.Getenv(name[1:]) })
}

// manifestCmd is: manifest put FILE... | rm FILE... | expand FILE...
func (n *node) manifestCmd(ts *testscript.TestScript, args []string) error {
	if len(args) < 2 {
		return errUsage
	}
	for _, file := range args[1:] {
		in := filepath.Join(n.manifests(), filepath.Base(file))
		var err error
		switch args[0] {
		case "put": // by a rename, or the agent might read half a file
			tmp := filepath.Join(n.dir, "manifest.tmp")
			err = errors.Join(os.WriteFile(tmp, []byte(expanded(ts, file)), 0o600), os.Rename(tmp, in))
		case "rm":
			err = os.Remove(in)
		case "expand":
			err = os.WriteFile(ts.MkAbs(file), []byte(expanded(ts, file)), 0o600)
		default:
			err = errUsage
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// untilCmd is: until REGEXP COMMAND... — a program, podCmd, or crictlCmd
//
// When the output matches, it becomes the script's stdout and stderr.
func (n *node) untilCmd(ts *testscript.TestScript, args []string) error {
	if len(args) < 2 {
		return errUsage
	}
	want, err := regexp.Compile("(?m)" + args[0])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), untilTime)
	defer cancel()
	for {
		out, errs, err := n.say(ctx, ts, args[1:])
		if want.MatchString(out) || want.MatchString(errs) {
			fmt.Fprint(ts.Stdout(), out)
			fmt.Fprint(ts.Stderr(), errs)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not so after %v; now: %v\n%s%s", untilTime, err, out, errs)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// say runs a command and returns its output.
func (n *node) say(ctx context.Context, ts *testscript.TestScript, args []string) (stdout, stderr string, err error) {
	if len(args) == 2 && args[0] == "pod" {
		stdout, err = n.podOfRuntime(ts, args[1])
		return stdout, "", err
	}
	if args[0] == "crictl" {
		stdout, err = n.crictl(args[1:])
		return stdout, "", err
	}
	program := args[0]
	if own := filepath.Join(n.binaries.dir, program); testenv.Exists(own) {
		program = own
	}
	var out, errs strings.Builder
	cmd := exec.CommandContext(ctx, program, args[1:]...)
	cmd.Dir, cmd.Env = ts.MkAbs("."), append(os.Environ(), append(n.agentEnv(), "PATH="+ts.Getenv("PATH"))...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// podCmd is: pod NAME
func (n *node) podCmd(ts *testscript.TestScript, args []string) error {
	if len(args) != 1 {
		return errUsage
	}
	text, err := n.podOfRuntime(ts, args[0])
	fmt.Fprint(ts.Stdout(), text)
	return err
}

// podOfRuntime lists the runtime's objects of a pod: "sandbox ATTEMPT STATE HANDLER", and
// "CONTAINER ATTEMPT STATE in ATTEMPT" of the sandbox; or "nothing". $SANDBOX becomes the
// ID of the last sandbox, $ID_CONTAINER that of a container.
func (n *node) podOfRuntime(ts *testscript.TestScript, name string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	mine := map[string]string{"io.kubernetes.pod.name": name}
	sandboxes, err := n.runtime().ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: mine}})
	if err != nil {
		return "", err
	}
	containers, err := n.runtime().ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: mine}})
	if err != nil {
		return "", err
	}
	var text strings.Builder
	attempts := map[string]uint32{}
	slices.SortFunc(sandboxes.Items, func(a, b *cri.PodSandbox) int { return cmp.Compare(a.Metadata.Attempt, b.Metadata.Attempt) })
	for _, sb := range sandboxes.Items {
		attempts[sb.Id] = sb.Metadata.Attempt
		ts.Setenv("SANDBOX", sb.Id)
		fmt.Fprintf(&text, "sandbox %d %s %s\n", sb.Metadata.Attempt, strings.TrimPrefix(sb.State.String(), "SANDBOX_"), sb.RuntimeHandler)
	}
	for _, c := range containers.Containers {
		ts.Setenv("ID_"+c.Metadata.Name, c.Id)
		fmt.Fprintf(&text, "%s %d %s in %d\n", c.Metadata.Name, c.Metadata.Attempt, strings.TrimPrefix(c.State.String(), "CONTAINER_"), attempts[c.PodSandboxId])
	}
	return cmp.Or(text.String(), "nothing\n"), nil
}

// agentEnv returns the environment in which the command line finds the runtime and the
// agent.
func (n *node) agentEnv() []string {
	return []string{"CRISP_RUNTIME_ENDPOINT=unix://" + n.socket, "CRISP_AGENT_ROOT=" + n.agentRoot()}
}

// exitsCmd is: exits CODE COMMAND...
func (n *node) exitsCmd(ts *testscript.TestScript, args []string) error {
	if len(args) < 2 {
		return errUsage
	}
	want, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			return err
		}
		got = exit.ExitCode()
	}
	if got != want {
		return fmt.Errorf("exit code %d, want %d", got, want)
	}
	return nil
}

// serveHTTP serves requests on loopback, and adds a line to the file for each.
func serveHTTP(ts *testscript.TestScript, file string) error {
	f, err := os.Create(ts.MkAbs(file))
	if err != nil {
		return err
	}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(f, r.Method, r.URL)
	}))
	ts.Defer(func() {
		server.Close()
		f.Close()
	})
	address, err := url.Parse(server.URL)
	if err != nil {
		return err
	}
	ts.Setenv("PORT", address.Port())
	return nil
}
