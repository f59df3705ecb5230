package test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// An agentProcess is a crisp agent that may be killed and started again.
type agentProcess struct {
	t         *testing.T
	n         *node
	manifests string
	flags     []string // besides those of every agent
	cmd       *exec.Cmd
}

func (a *agentProcess) start() {
	a.t.Helper()
	var err error
	if a.cmd, err = a.n.agentProgram(a.manifests, a.flags); err != nil {
		a.t.Fatal(err)
	}
}

// agentProgram starts an agent that logs to agent.log in the node's directory. Unless flags say
// otherwise, it does nothing about the machine's disk, which may be nearly full.
func (n *node) agentProgram(manifests string, flags []string) (*exec.Cmd, error) {
	log, err := os.OpenFile(filepath.Join(n.dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(n.binaries.dir, "crisp"), append([]string{"agent",
		"--runtime-endpoint", "unix://" + n.socket, "--root", n.agentRoot(), "--manifests", manifests,
		"--image-gc-high-threshold", "100", "--eviction-hard", "memory.available<100Mi"}, flags...)...)
	if n.owner != 0 {
		n.manage(cmd)
	}
	cmd.Stdout, cmd.Stderr = log, log
	return cmd, cmd.Start()
}

func (a *agentProcess) end(sig syscall.Signal) {
	a.t.Helper()
	if err := a.cmd.Process.Signal(sig); err != nil {
		a.t.Errorf("the agent ended by itself: %v", err)
	}
	if err := a.cmd.Wait(); err != nil && sig == syscall.SIGTERM {
		a.t.Errorf("agent: %v", err)
	}
}

// untilTime is the longest wait for an event: an emulated node that also does other work is
// some fifty times slower than an idle machine.
const untilTime = 5 * time.Minute

// until waits until yes returns true, and fails the test after untilTime.
func (a *agentProcess) until(yes func() bool, what string) {
	a.t.Helper()
	for deadline := time.Now().Add(untilTime); !yes(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(filepath.Join(a.n.dir, "agent.log"))
			a.t.Fatalf("not so after %v: %s\n%s", untilTime, what, log)
		}
	}
}

// crisp runs a command line against the agent, with this standard input.
func (a *agentProcess) crisp(stdin string, args ...string) (out string, code int) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), untilTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(a.n.binaries.dir, "crisp"), args...)
	cmd.Env = append(os.Environ(), a.n.agentEnv()...)
	cmd.Stdin = strings.NewReader(stdin)
	data, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(data), exit.ExitCode()
	}
	if err != nil {
		a.t.Fatalf("crisp %v: %v", args, err)
	}
	return string(data), 0
}

// says runs a command line, which must exit with code and write output that matches
// pattern.
func (a *agentProcess) says(code int, pattern string, args ...string) {
	a.t.Helper()
	if out, got := a.crisp("", args...); got != code || !regexp.MustCompile(pattern).MatchString(out) {
		a.t.Errorf("crisp %v: code %d\n%swant code %d, %s", args, got, out, code, pattern)
	}
}

func (a *agentProcess) file(name, text string) string {
	a.t.Helper()
	path := filepath.Join(a.n.dir, name)
	text = strings.NewReplacer("    image: IMAGE\n", "    image: "+testImage+"\n    imagePullPolicy: Never\n", "IMAGE", `"`+testImage+`", imagePullPolicy: Never`).Replace(text)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		a.t.Fatal(err)
	}
	return path
}
