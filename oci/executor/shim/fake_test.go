package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/shimtest/behaviour"
	"github.com/crisp-cri/crisp/test/testenv"
)

// scratch returns a directory for the programs that tests have built.
var scratch = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "shim-"); err != nil {
		return "", err
	}
	built = dir
	return dir, nil
})

// built is what scratch returns; "" = no test has needed it.
var built string

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// A pod is a shim of tests with one sandbox.
type pod struct {
	t      *testing.T
	dir    string
	path   string // of the program
	root   string
	events string
	got    <-chan Event
	Program
	client *Client
	addr   Address
	log    chan string
}

// newPod makes what a shim needs: a program of its own, a root file system, bundles and a log.
func newPod(t *testing.T, b behaviour.Behaviour) *pod {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("containers need root")
	}
	testenv.Need(t, "shims")
	into, err := scratch()
	check(t, err)
	shimtest, err := testenv.Build(into, "shimtest")
	check(t, err)
	testbin, err := testenv.Build(into, "testbin")
	check(t, err)
	p := &pod{t: t, dir: t.TempDir(), log: make(chan string, 1000)}
	p.path, p.root = filepath.Join(p.dir, "shim"), filepath.Join(p.dir, "root")
	p.events, p.got = serveEvents(t)
	b.Record = filepath.Join(p.dir, "record")
	check(t, testenv.Link(shimtest, p.path), os.Mkdir(p.root, 0o755), b.Save(p.path),
		testenv.Link(testbin, filepath.Join(p.root, "testbin")))
	p.Program = Program{
		Path: p.path, Namespace: "k8s.io", ID: "pod", Bundle: p.bundle("pod", "sandbox", "sleep", "for-ever"), Events: p.events, Sockets: p.dir,
	}
	l, err := OpenLog(p.Bundle)
	check(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Lines(func(line string) { p.log <- line })
	}()
	t.Cleanup(func() {
		l.Close()
		<-ended
	})
	return p
}

func check(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// bundle makes a bundle whose process is /testbin with args.
func (p *pod) bundle(id, kind string, args ...string) string {
	dir := filepath.Join(p.dir, id)
	spec := map[string]any{
		"annotations": map[string]string{"io.kubernetes.cri.container-type": kind, "io.kubernetes.cri.sandbox-id": "pod"},
		"root":        map[string]any{"path": p.root},
		"process":     map[string]any{"args": append([]string{"/testbin"}, args...), "cwd": "/", "env": []string{"A=b"}},
	}
	data, err := json.Marshal(spec)
	check(p.t, err, os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600))
	return dir
}

// begin starts the shim and connects to it; its end is checked.
func (p *pod) begin() {
	p.t.Helper()
	a, err := Start(p.t.Context(), p.Program)
	check(p.t, err)
	p.addr = *a
	p.client = connect(p.t, p.addr)
	p.t.Cleanup(p.end)
}

// end ends the shim, if it is there, and sees that no process is left.
func (p *pod) end() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.addr.Kill(ctx, 0); err != nil {
		p.t.Error(err)
	}
	for _, id := range []string{"pod", "c"} {
		if bundle := filepath.Join(p.dir, id); exists(bundle) {
			program := p.Program
			program.ID, program.Bundle = id, bundle
			check(p.t, behaviour.Behaviour{}.Save(p.path))
			if _, err := program.Delete(ctx); err != nil {
				p.t.Error(err)
			}
		}
	}
	for _, dir := range glob("/proc/[1-9]*") {
		exe, _ := os.Readlink(dir + "/exe")
		for strings.HasPrefix(exe, p.dir) && exists(dir) && !zombie(dir) { // killed, but not gone yet
			if ctx.Err() != nil {
				command, _ := os.ReadFile(dir + "/cmdline")
				p.t.Fatalf("process %s is left: %q", dir, command)
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

func glob(pattern string) []string { all, _ := filepath.Glob(pattern); return all }

func zombie(dir string) bool {
	stat, err := os.ReadFile(dir + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// fifo makes a FIFO and returns its path and what is read from it, once its writers have closed it.
func (p *pod) fifo(name string) (string, <-chan string) {
	path := filepath.Join(p.dir, name)
	check(p.t, syscall.Mkfifo(path, 0o600))
	output := make(chan string, 1)
	go func() {
		f, err := os.Open(path) // waits for a writer
		if err != nil {
			return
		}
		defer f.Close()
		data, _ := io.ReadAll(f)
		output <- string(data)
	}()
	return path, output
}

// Both versions of the API, and each form of the answer to start: a pod with a container, its output,
// input, exec, stats, exit codes and events.
func TestShim(t *testing.T) {
	testenv.Need(t, "shims")
	for _, tt := range []struct {
		version int
		answer  string
	}{{2, "address"}, {2, "json"}, {3, "json"}, {3, "message"}} {
		t.Run(fmt.Sprint(tt.version, " ", tt.answer), func(t *testing.T) {
			p := newPod(t, behaviour.Behaviour{Version: tt.version, Answer: tt.answer, Log: "a line"})
			p.begin()
			ctx, c := t.Context(), p.client
			if p.addr.Version != tt.version {
				t.Errorf("the version is %d", p.addr.Version)
			}
			pid, err := c.Create(ctx, CreateRequest{ID: "pod", Bundle: p.Bundle})
			check(t, err)
			if started, err := c.Start(ctx, "pod", ""); err != nil || started != pid {
				t.Errorf("process %d becomes %d (%v)", pid, started, err)
			}
			if line := <-p.log; line != "a line" {
				t.Errorf("the log has %q", line)
			}
			shimPID, err := c.Connect(ctx, "pod")
			check(t, err)
			if shimPID < 2 || shimPID == pid || shimPID == os.Getpid() {
				t.Errorf("the shim's PID is %d", shimPID)
			}

			again, err := Start(ctx, Program{
				Path: p.path, Namespace: "k8s.io", ID: "c", Bundle: p.bundle("c", "container", "print", "out", "eprint", "err", "echo-stdin", "exit", "7"), Events: p.events, Sockets: p.dir,
			})
			if err != nil || *again != p.addr {
				t.Errorf("the pod has another shim: %+v (%v)", again, err)
			}
			out, stdout := p.fifo("out")
			errs, stderr := p.fifo("err")
			in := filepath.Join(p.dir, "in")
			check(t, syscall.Mkfifo(in, 0o600))
			_, err = c.Create(ctx, CreateRequest{ID: "c", Bundle: filepath.Join(p.dir, "c"), IO: IO{Stdin: in, Stdout: out, Stderr: errs}})
			check(t, err)
			if s, err := c.State(ctx, "c", ""); err != nil || s.Status != Created || s.Stdout != out || s.Exit != nil {
				t.Errorf("before the start: %+v (%v)", s, err)
			}
			_, err = c.Start(ctx, "c", "")
			check(t, err)
			testExec(t, p)
			testCheckpoint(t, p)
			if stats, err := c.Stats(ctx, "c"); err != nil || stats.TypeURL != "io.containerd.cgroups.v1.Metrics" || len(stats.Value) == 0 {
				t.Errorf("stats are %+v (%v)", stats, err)
			}
			writer, err := os.OpenFile(in, os.O_WRONLY, 0)
			check(t, err)
			fmt.Fprint(writer, "input\n")
			writer.Close()
			exit, err := c.Wait(ctx, "c", "")
			if err != nil || exit.Status != 7 || time.Since(exit.At) > time.Minute {
				t.Errorf("the exit is %+v (%v)", exit, err)
			}
			if got := [2]string{<-stdout, <-stderr}; got != [2]string{"out\ninput\n", "err\n"} {
				t.Errorf("the output is %q", got)
			}
			if e := <-p.got; e.ContainerID != "c" || e.ExecID != "" || e.Exit.Status != 7 || e.Namespace != "k8s.io" || e.Publisher != shimPID {
				t.Errorf("the event is %+v %+v", e, e.Exit)
			}
			if s, err := c.State(ctx, "c", ""); err != nil || s.Status != Stopped || s.Exit.Status != 7 {
				t.Errorf("after the exit: %+v (%v)", s, err)
			}
			if exit, err := c.Delete(ctx, "c", ""); err != nil || exit.Status != 7 {
				t.Errorf("delete: %+v (%v)", exit, err)
			}
			if err := c.Kill(ctx, "c", "", 9, true); !errors.Is(err, fault.NotFound) {
				t.Errorf("a signal for what is gone: %v", err)
			}
			check(t, c.Kill(ctx, "pod", "", 9, true))
			exit, err = c.Wait(ctx, "pod", "")
			if err != nil || exit.Status != 137 {
				t.Errorf("the sandbox's exit is %+v (%v)", exit, err)
			}
			<-p.got
			_, err = c.Delete(ctx, "pod", "")
			check(t, err, c.Shutdown(ctx, "pod", false))
			<-c.Done()
		})
	}
}

// testExec runs a process in container c.
func testExec(t *testing.T, p *pod) {
	out, stdout := p.fifo("exec-out")
	spec := ProcessSpec([]byte(`{"args":["/testbin","print","exec","exit","3"],"cwd":"/","env":[]}`))
	check(t, p.client.Exec(t.Context(), ExecRequest{ID: "c", ExecID: "e", IO: IO{Stdout: out}, Spec: spec}))
	if err := p.client.Exec(t.Context(), ExecRequest{ID: "c", ExecID: "e", Spec: spec}); !errors.Is(err, fault.Exists) {
		t.Errorf("twice the same exec: %v", err)
	}
	_, err := p.client.Start(t.Context(), "c", "e")
	check(t, err)
	if exit, err := p.client.Wait(t.Context(), "c", "e"); err != nil || exit.Status != 3 {
		t.Errorf("the exec's exit is %+v (%v)", exit, err)
	}
	if e := <-p.got; e.ContainerID != "c" || e.ExecID != "e" || e.Exit.Status != 3 {
		t.Errorf("the exec's event is %+v", e)
	}
	if got := <-stdout; got != "exec\n" {
		t.Errorf("the exec's output is %q", got)
	}
	if exit, err := p.client.Delete(t.Context(), "c", "e"); err != nil || exit.Status != 3 {
		t.Errorf("delete of the exec: %+v (%v)", exit, err)
	}
}

// testCheckpoint pauses container c, writes its checkpoint and has it go on.
func testCheckpoint(t *testing.T, p *pod) {
	ctx, images := t.Context(), filepath.Join(p.dir, "images")
	check(t, os.Mkdir(images, 0o700), p.client.Pause(ctx, "c"))
	if s, err := p.client.State(ctx, "c", ""); err != nil || s.Status != Paused || s.Exit != nil {
		t.Errorf("paused: %+v (%v)", s, err)
	}
	check(t, p.client.Checkpoint(ctx, "c", images, RuncCheckpoint(p.dir)), p.client.Resume(ctx, "c"))
	if s, err := p.client.State(ctx, "c", ""); err != nil || s.Status != Running {
		t.Errorf("it goes on: %+v (%v)", s, err)
	}
	if !exists(filepath.Join(images, "shimtest")) || !exists(filepath.Join(p.dir, "dump.log")) {
		t.Error("nothing was written")
	}
}

// calls are one call of each method for the sandbox.
func (p *pod) calls() map[string]func(context.Context) error {
	calls := map[string]func(context.Context) error{}
	for _, m := range methods {
		calls[m.name] = func(ctx context.Context) error {
			_, err := m.call(ctx, p.client) // of another container, which a shim does not look for then
			return err
		}
	}
	calls["Create"] = func(ctx context.Context) error {
		_, err := p.client.Create(ctx, CreateRequest{ID: "pod", Bundle: p.Bundle})
		return err
	}
	return calls
}

// A shim that hangs in a call: that call ends in time, and the shim with its container can be ended.
func TestShimHangs(t *testing.T) {
	testenv.Need(t, "shims")
	for name := range (&pod{}).calls() {
		t.Run(name, func(t *testing.T) {
			b := behaviour.Behaviour{Sandbox: strings.Contains(name, "Sandbox")}
			p := newPod(t, b)
			p.begin()
			check(t, p.calls()["Create"](t.Context()))
			shimPID, err := p.client.Connect(t.Context(), "pod")
			b.Hang = []string{name}
			check(t, err, b.Save(p.path))
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if err := p.calls()[name](ctx); !errors.Is(err, fault.Unavailable) || !errors.Is(err, context.DeadlineExceeded) ||
				!strings.HasPrefix(err.Error(), p.addr.String()+": "+name+" has no answer in time: ") {
				t.Errorf("the error is %v", err)
			}
			if name != "State" {
				if state, err := p.client.State(t.Context(), "pod", ""); err != nil || state.PID == 0 {
					t.Errorf("another call: %+v (%v)", state, err)
				}
			}
			check(t, p.addr.Kill(t.Context(), shimPID))
			<-p.client.Done()
			if !zombie(fmt.Sprintf("/proc/%d", shimPID)) {
				t.Error("the shim lives")
			}
		})
	}
}

// A shim that dies in a call: that and all later calls fail at once, and delete removes what is left.
func TestShimDies(t *testing.T) {
	testenv.Need(t, "shims")
	for name := range (&pod{}).calls() {
		t.Run(name, func(t *testing.T) {
			p := newPod(t, behaviour.Behaviour{Sandbox: strings.Contains(name, "Sandbox"), Die: []string{name}})
			p.begin()
			if name != "Create" {
				check(t, p.calls()["Create"](t.Context()))
			}
			err := p.calls()[name](t.Context())
			if strings.HasPrefix(name, "Shutdown") && err == nil {
				<-p.client.Done() // that was the point of it
			} else if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), p.addr.String()) {
				t.Errorf("the error is %v", err)
			}
			if exit, err := p.Program.Delete(t.Context()); err != nil || exit.Status != 137 || (exit.PID == 0) != (name == "Create") {
				t.Errorf("the exit is %+v (%v)", exit, err)
			}
		})
	}
}

// A shim that hangs or dies in start or delete, or says what is no answer.
func TestProgramHangsOrDies(t *testing.T) {
	p := newPod(t, behaviour.Behaviour{Hang: []string{"start", "delete"}})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := Start(ctx, p.Program); !errors.Is(err, fault.Unavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("start that hangs: %v", err)
	}
	if _, err := p.Program.Delete(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("delete that hangs: %v", err)
	}
	check(t, behaviour.Behaviour{Die: []string{"start sandbox"}}.Save(p.path))
	if _, err := Start(t.Context(), p.Program); err == nil || !strings.Contains(err.Error(), "start of container pod: signal: killed") {
		t.Errorf("start that dies: %v", err)
	}
	check(t, behaviour.Behaviour{}.Save(p.path))
	p.begin() // a retry succeeds
}

// Two shims have listened at the same path; both are ended, and another process by a wrong PID is not.
func TestKillFindsListeners(t *testing.T) {
	p := newPod(t, behaviour.Behaviour{})
	p.begin()
	first, err := p.client.listener()
	check(t, err, os.Remove(p.addr.Path))
	p.begin()
	second, err := p.client.listener()
	check(t, err)
	if first == second {
		t.Fatal("it is the same shim")
	}
	other := exec.Command("sleep", "1000")
	check(t, other.Start())
	check(t, p.addr.Kill(t.Context(), other.Process.Pid))
	if diff := cmp.Diff([]bool{true, true, false}, []bool{
		zombie(fmt.Sprintf("/proc/%d", first)), zombie(fmt.Sprintf("/proc/%d", second)), zombie(fmt.Sprintf("/proc/%d", other.Process.Pid)),
	}); diff != "" {
		t.Errorf("which have ended (-want +got):\n%s", diff)
	}
	check(t, other.Process.Kill())
	_ = other.Wait()
}

// listener creates the sandbox, and returns the PID of the shim.
func (c *Client) listener() (int, error) {
	if _, err := c.Create(context.Background(), CreateRequest{ID: "pod", Bundle: filepath.Join(filepath.Dir(c.address.Path), "pod")}); err != nil {
		return 0, err
	}
	return c.Connect(context.Background(), "pod")
}
