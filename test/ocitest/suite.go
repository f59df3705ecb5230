package ocitest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A Node is what Suite runs on: a Machine, or the kernel with the real executor.
type Node interface {
	// Open opens a Runtime on the node. It is closed when the test ends, if not
	// before.
	Open(t testing.TB) *oci.Runtime
	// Spec returns the spec of a container that runs testbin with args in a PID
	// namespace of its own.
	Spec(args ...string) *specs.Spec
	// Processes counts the running processes of a container.
	Processes(t testing.TB, c *oci.Container) int
	// CrashExecutor kills the executor only.
	CrashExecutor(t testing.TB)
}

// A ShimNode is a node whose containers run in a containerd shim.
type ShimNode interface {
	Node
	Shim() *oci.Shim
}

// What a test of the suite needs: nothing, or a PID namespace of ours, which no shim knows.
const (
	nothing = ""
	ourPIDs = "our PID namespace"
)

// Suite runs the tests that any node must pass. newNode returns a new one.
func Suite(t *testing.T, newNode func(t *testing.T) Node) {
	for _, test := range []struct {
		name  string
		run   func(*fixture)
		needs string
	}{
		{"an exit code is reported", exitCode, nothing},
		{"what cannot be executed", cannotExecute, nothing},
		{"stop by signal", stopBySignal, nothing},
		{"stop by force", stopByForce, nothing},
		{"nothing outlives init", nothingOutlivesInit, nothing},
		{"remove kills", removeKills, nothing},
		{"exec", execute, nothing},
		{"exec that is killed", execKilled, nothing},
		{"attach and stdin once", attachStdinOnce, nothing},
		{"log", logFile, nothing},
		{"what needs a running container", needsRunning, nothing},
		{"the daemon is restarted", daemonRestarted, nothing},
		{"the daemon is away at an exit", daemonAway, nothing},
		{"the executor crashes", executorCrashes, nothing},
		{"both are lost", bothLost, nothing},
		{"one PID namespace for all", sharedPIDs, ourPIDs},
		{"everything is shut down", shutDown, nothing},
	} {
		t.Run(test.name, func(t *testing.T) {
			node := newNode(t)
			if _, is := node.(ShimNode); is && test.needs == ourPIDs {
				return
			}
			f := &fixture{T: t, node: node, r: node.Open(t)}
			test.run(f)
			f.removeAll()
		})
	}
}

func exitCode(f *fixture) {
	sb := f.sandbox(nil)
	for args, want := range map[string]struct {
		code   int32
		reason string
	}{
		"exit 0": {0, "Completed"},
		"exit 7": {7, "Error"},
	} {
		c := f.create(sb, nil, strings.Fields(args)...)
		if st := c.Status(); st.State != oci.Created || !st.StartedAt.IsZero() {
			f.Errorf("status before the start: %+v", st)
		}
		f.ok(c.Start(f.ctx()))
		f.exited(c, want.code, want.reason)
		f.is(c.Start(f.ctx()), fault.WrongState)
		f.ok(c.Stop(f.ctx(), unix.SIGTERM, time.Second))
		f.ok(c.Remove(f.ctx()))
		_, err := f.r.Container(c.ID())
		f.is(err, fault.NotFound)
		f.ok(c.Remove(f.ctx())) // a late retry
	}
}

func cannotExecute(f *fixture) {
	sb := f.sandbox(nil)
	c := f.create(sb, func(cfg *oci.ContainerConfig) { cfg.Spec.Process.Args = []string{"/missing"} })
	err := c.Start(f.ctx())
	if err == nil || !strings.Contains(err.Error(), "/missing") {
		f.Errorf("start of a program that is not there: %v", err)
	}
	st := c.Status()
	if st.StartedAt.IsZero() || !st.StartedAt.Equal(st.FinishedAt) {
		f.Errorf("the start failed at %v, started is %v", st.FinishedAt, st.StartedAt)
	}
	if st.State != oci.Exited || st.ExitCode != 128 || st.Reason != "StartError" || !strings.Contains(st.Message, "/missing") {
		f.Errorf("status is %+v", st)
	}
	f.reopen() // it is remembered like any other exit
	if again := f.again(c).Status(); again.State != oci.Exited || again.ExitCode != 128 || again.Message != st.Message || !again.StartedAt.Equal(st.StartedAt) {
		f.Errorf("status after a restart is %+v", again)
	}
	f.ok(f.again(c).Remove(f.ctx()))

	sb, err = f.r.Sandbox(sb.ID())
	f.ok(err)
	f.exited(f.start(sb, nil, "exit", "0"), 0, "Completed") // the next one is not affected
}

func stopBySignal(f *fixture) {
	sb := f.sandbox(nil)
	// The first process of a PID namespace is spared by signals it does not
	// handle (pid_namespaces(7)).
	c := f.start(sb, hostPIDs, "sleep", "for-ever")
	f.ok(c.Stop(f.ctx(), unix.SIGTERM, patience))
	f.exited(c, 143, "Error")
}

func stopByForce(f *fixture) {
	sb := f.sandbox(nil)
	path := filepath.Join(f.TempDir(), "log")
	c := f.start(sb, func(cfg *oci.ContainerConfig) { cfg.LogPath = path },
		"ignore-term", "print", "ready", "sleep", "for-ever")
	f.until("container is never ready", func() bool {
		data, _ := os.ReadFile(path)
		return strings.Contains(string(data), "ready")
	})
	f.ok(c.Stop(f.ctx(), unix.SIGTERM, 50*time.Millisecond))
	f.exited(c, 137, "Error")
	c = f.start(sb, nil, "sleep", "for-ever")
	f.ok(c.Stop(f.ctx(), unix.SIGTERM, 0))
	f.exited(c, 137, "Error")
	c = f.start(sb, nil, "sleep", "for-ever")
	f.ok(c.Stop(f.ctx(), unix.SIGTERM, -time.Second))
	f.exited(c, 137, "Error")
}

func nothingOutlivesInit(f *fixture) {
	sb := f.sandbox(nil)
	for _, edit := range []func(*oci.ContainerConfig){nil, hostPIDs} {
		c := f.start(sb, edit, "spawn", "sleep", "for-ever")
		f.exited(c, 0, "Completed")
		// They were killed, but may not be gone yet.
		f.until("processes are left", func() bool { return f.node.Processes(f.T, c) == 0 })
	}
}

func removeKills(f *fixture) {
	sb := f.sandbox(nil)
	c := f.start(sb, nil, "ignore-term", "sleep", "for-ever")
	f.is(sb.Remove(f.ctx()), fault.WrongState)
	f.ok(c.Remove(f.ctx()))
	if n := f.node.Processes(f.T, c); n > 0 {
		f.Errorf("%d processes are left", n)
	}
	f.ok(f.create(sb, nil, "exit", "0").Remove(f.ctx()))
}

func execute(f *fixture) {
	sb := f.sandbox(nil)
	c := f.start(sb, nil, "sleep", "for-ever")
	process := func(args ...string) *specs.Process {
		p := *f.node.Spec(args...).Process
		return &p
	}
	e, err := c.Exec(f.ctx(), oci.ExecConfig{Process: process("print", "out", "eprint", "err", "echo-stdin", "exit", "3"), Stdin: true})
	f.ok(err)
	io.WriteString(e.Stdin, "in\n")
	f.ok(e.Stdin.Close())
	out, errs := read(e.Stdout), read(e.Stderr)
	if got := <-out; got != "out\nin\n" {
		f.Errorf("stdout is %q", got)
	}
	if got := <-errs; got != "err\n" {
		f.Errorf("stderr is %q", got)
	}
	if code, err := e.Wait(f.ctx()); code != 3 || err != nil {
		f.Errorf("code %d (err %v)", code, err)
	}
	f.ok(e.Close())

	missing := process()
	missing.Args = []string{"/missing"}
	if _, err := c.Exec(f.ctx(), oci.ExecConfig{Process: missing}); err == nil || !strings.Contains(err.Error(), "/missing") {
		f.Errorf("exec of what is not there: %v", err)
	}
	f.running(c)

	e, err = c.Exec(f.ctx(), oci.ExecConfig{Process: process("print", "out"), TTY: true, Width: 80, Height: 24})
	f.ok(err)
	terminal, other := e.PTY, e.Stdout
	if _, is := f.node.(ShimNode); is {
		terminal, other = other, terminal
	}
	if terminal == nil || other != nil {
		f.Fatalf("with a terminal: %+v", e)
	}
	if got := <-read(terminal); strings.TrimSpace(got) != "out" {
		f.Errorf("terminal shows %q", got)
	}
	if code, err := e.Wait(f.ctx()); code != 0 || err != nil {
		f.Errorf("code %d (err %v)", code, err)
	}
	f.ok(e.Close())
}

// read reads until the end; a terminal ends with EIO.
func read(from *os.File) <-chan string {
	done := make(chan string, 1)
	go func() {
		var all bytes.Buffer
		io.Copy(&all, from)
		done <- all.String()
	}()
	return done
}

func execKilled(f *fixture) {
	sb := f.sandbox(nil)
	c := f.start(sb, nil, "sleep", "for-ever")
	before := f.node.Processes(f.T, c)
	p := f.node.Spec("print", "there", "sleep", "for-ever").Process
	e, err := c.Exec(f.ctx(), oci.ExecConfig{Process: p})
	f.ok(err)
	if line, err := bufio.NewReader(e.Stdout).ReadString('\n'); line != "there\n" {
		f.Errorf("read %q (err %v)", line, err)
	}
	f.ok(e.Kill())
	if code, err := e.Wait(f.ctx()); code != 137 || err != nil {
		f.Errorf("code %d (err %v)", code, err)
	}
	f.ok(e.Close())

	e, err = c.Exec(f.ctx(), oci.ExecConfig{Process: p}) // abandoned: Close ends it
	f.ok(err)
	ctx, cancel := context.WithCancel(f.ctx())
	cancel()
	if _, err := e.Wait(ctx); !errors.Is(err, context.Canceled) {
		f.Errorf("wait that was given up: %v", err)
	}
	f.ok(e.Close())
	if n := f.node.Processes(f.T, c); n != before {
		f.Errorf("%d processes, want %d", n, before)
	}
	f.running(c)
}

func attachStdinOnce(f *fixture) {
	sb := f.sandbox(nil)
	c := f.start(sb, func(cfg *oci.ContainerConfig) { cfg.Stdin, cfg.StdinOnce = true, true }, "echo-stdin", "exit", "4")
	a, err := c.Attach(f.ctx(), true)
	f.ok(err)
	watch, err := c.Attach(f.ctx(), false)
	f.ok(err)
	if watch.Stdin != nil {
		f.Error("got a stdin that was not asked for")
	}
	first, second := read(a.Stdout), read(watch.Stdout)
	io.WriteString(a.Stdin, "hello\n")
	f.ok(a.Stdin.Close())
	f.exited(c, 4, "Error")
	if one, two := <-first, <-second; one != "hello\n" || two != "hello\n" {
		f.Errorf("attached streams got %q and %q", one, two)
	}
	wire.CloseAll([]*os.File{a.Stdout, a.Stderr, watch.Stdout, watch.Stderr})
}

func logFile(f *fixture) {
	sb := f.sandbox(nil)
	path := filepath.Join(f.TempDir(), "0.log")
	c := f.start(sb, func(cfg *oci.ContainerConfig) { cfg.LogPath = path }, "print", "to stdout", "eprint", "to stderr", "exit", "0")
	f.exited(c, 0, "Completed")
	data, err := os.ReadFile(path) // complete once the exit is reported
	f.ok(err)
	for _, want := range []string{" stdout F to stdout\n", " stderr F to stderr\n"} {
		if !strings.Contains(string(data), want) {
			f.Errorf("log lacks %q: %q", want, data)
		}
	}

	c = f.start(sb, func(cfg *oci.ContainerConfig) { cfg.LogPath = path }, "sleep", "for-ever")
	f.ok(os.Rename(path, path+".1"))
	f.ok(c.ReopenLog(f.ctx()))
	if _, err := os.Stat(path); err != nil {
		f.Error(err)
	}
	f.ok(c.Stop(f.ctx(), unix.SIGTERM, 0))
	f.ok(os.Remove(path))
	f.is(c.ReopenLog(f.ctx()), fault.WrongState)
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		f.Errorf("the log of a container that has ended was made: %v", err)
	}
}

func needsRunning(f *fixture) {
	sb := f.sandbox(nil)
	c := f.create(sb, nil, "exit", "0")
	for range 2 { // when created, and when exited
		_, err := c.Exec(f.ctx(), oci.ExecConfig{Process: f.node.Spec("exit", "0").Process})
		f.is(err, fault.WrongState)
		_, err = c.Attach(f.ctx(), false)
		f.is(err, fault.WrongState)
		f.is(c.Resize(f.ctx(), 80, 24), fault.WrongState)
		f.is(c.ReopenLog(f.ctx()), fault.WrongState)
		_, err = c.Stats()
		f.is(err, fault.WrongState)
		f.ok(c.Stop(f.ctx(), unix.SIGTERM, time.Second))
		if c.Status().State == oci.Created {
			f.ok(c.Start(f.ctx()))
			f.exited(c, 0, "Completed")
		}
	}
	f.is(c.Apply(f.ctx(), oci.Change{Resources: &specs.LinuxResources{}}), fault.WrongState)
}

func daemonRestarted(f *fixture) {
	sb := f.sandbox(nil)
	c := f.start(sb, func(cfg *oci.ContainerConfig) { cfg.Name, cfg.Extra = "name", []byte{0xff, 1} }, "sleep", "for-ever")
	created := f.create(sb, nil, "exit", "5")
	before := c.Status()
	f.reopen()
	c, created = f.again(c), f.again(created)
	f.running(c)
	if after := c.Status(); after.Pid != before.Pid || !after.StartedAt.Equal(before.StartedAt) {
		f.Errorf("status was %+v, is %+v", before, after)
	}
	if named, ok := f.r.ContainerByName("name"); !ok || named != c || !bytes.Equal(c.Extra(), []byte{0xff, 1}) {
		f.Errorf("name or extra were lost: %v, %q", ok, c.Extra())
	}
	sb, err := f.r.Sandbox(sb.ID())
	f.ok(err)
	if sb.State() != oci.SandboxReady || string(sb.Extra()) != "extra" || len(sb.Containers()) != 2 {
		f.Errorf("sandbox is %v with %d containers and %q", sb.State(), len(sb.Containers()), sb.Extra())
	}
	f.ok(created.Start(f.ctx()))
	f.exited(created, 5, "Error")
	e, err := c.Exec(f.ctx(), oci.ExecConfig{Process: f.node.Spec("exit", "3").Process})
	f.ok(err)
	if code, err := e.Wait(f.ctx()); code != 3 || err != nil {
		f.Errorf("exec after a restart: code %d (err %v)", code, err)
	}
	f.ok(e.Close())
	f.ok(c.Stop(f.ctx(), unix.SIGTERM, 0))
	f.exited(c, 137, "Error")
}

func daemonAway(f *fixture) {
	sb := f.sandbox(nil)
	c := f.start(sb, func(cfg *oci.ContainerConfig) { cfg.Stdin = true }, "sleep", "200ms", "exit", "7")
	f.ok(f.r.Close())
	f.until("container does not end", func() bool { return f.node.Processes(f.T, c) == 0 })
	f.r = f.node.Open(f.T)
	f.exited(f.again(c), 7, "Error")
}

func executorCrashes(f *fixture) {
	sb := f.sandbox(nil)
	c := f.start(sb, nil, "sleep", "for-ever")
	quitter := f.start(sb, func(cfg *oci.ContainerConfig) { cfg.Stdin = true }, "echo-stdin", "sleep", "for-ever")
	pid := c.Status().Pid
	f.node.CrashExecutor(f.T)
	e, err := c.Exec(f.ctx(), oci.ExecConfig{Process: f.node.Spec("exit", "3").Process})
	if errors.Is(err, fault.Unavailable) { // the call that noticed the crash
		e, err = c.Exec(f.ctx(), oci.ExecConfig{Process: f.node.Spec("exit", "3").Process})
	}
	f.ok(err)
	if code, err := e.Wait(f.ctx()); code != 3 || err != nil {
		f.Errorf("exec by the new executor: code %d (err %v)", code, err)
	}
	f.ok(e.Close())
	f.running(c)
	if got := c.Status().Pid; got != pid {
		f.Errorf("pid was %d, is %d", pid, got)
	}
	f.ok(c.Stop(f.ctx(), unix.SIGTERM, 0))
	f.exitedAfterCrash(c, 137, "Error")
	f.ok(quitter.Remove(f.ctx()))
	if n := f.node.Processes(f.T, quitter); n > 0 {
		f.Errorf("%d processes are left", n)
	}
}

func bothLost(f *fixture) {
	sb := f.sandbox(nil)
	c := f.start(sb, nil, "sleep", "for-ever")
	f.ok(f.r.Close())
	f.node.CrashExecutor(f.T)
	f.r = f.node.Open(f.T)
	c = f.again(c)
	f.running(c)
	f.ok(c.Stop(f.ctx(), unix.SIGTERM, 0))
	f.exitedAfterCrash(c, 137, "Error")
}

func sharedPIDs(f *fixture) {
	sb := f.sandbox(func(cfg *oci.SandboxConfig) { cfg.SharedPID = true })
	if sb.NamespacePath("pid") == "" {
		f.Error("no PID namespace")
	}
	join := func(cfg *oci.ContainerConfig) {
		cfg.Spec.Linux.Namespaces = append(without(cfg.Spec, specs.PIDNamespace),
			specs.LinuxNamespace{Type: specs.PIDNamespace, Path: sb.NamespacePath("pid")})
	}
	c := f.start(sb, join, "sleep", "for-ever")
	f.reopen()
	f.node.CrashExecutor(f.T)
	sb, err := f.r.Sandbox(sb.ID())
	f.ok(err)
	f.exited(f.start(sb, join, "exit", "6"), 6, "Error")
	f.running(f.again(c))
	f.ok(sb.BeginStop())
	_, err = f.r.Create(f.ctx(), oci.ContainerConfig{SandboxID: sb.ID(), Spec: f.node.Spec("exit", "0")})
	f.is(err, fault.WrongState)
	for _, c := range sb.Containers() {
		f.ok(c.Stop(f.ctx(), unix.SIGTERM, 0))
	}
	for range 2 { // kubelet stops a sandbox many times
		f.ok(sb.Unpin(f.ctx()))
		f.ok(sb.Stopped())
		f.ok(sb.BeginStop())
	}
	if sb.State() != oci.SandboxNotReady {
		f.Errorf("sandbox is %v", sb.State())
	}
	f.exitedAfterCrash(f.again(c), 137, "Error")
}

func shutDown(f *fixture) {
	for range 2 {
		sb := f.sandbox(nil)
		f.start(sb, nil, "sleep", "for-ever")
		f.create(sb, nil, "exit", "0")
	}
	_, err := f.r.CreateSandbox(f.ctx(), oci.SandboxConfig{}) // never made ready
	f.ok(err)
	f.removeAll()
	f.r = nil
}
