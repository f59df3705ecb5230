package executor_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/opencontainers/cgroups/devices"
	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/logread"
	"github.com/crisp-cri/crisp/oci/executor"
	"github.com/crisp-cri/crisp/oci/executor/runtime"
	"github.com/crisp-cri/crisp/oci/executor/seal"
	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/testenv"
	"github.com/crisp-cri/crisp/test/testns"
)

// With these arguments the test binary is an executor or libcontainer's init. CRISP_BIN
// names a directory with the real programs.
func init() {
	if len(os.Args) < 2 {
		return
	}
	switch os.Args[1] {
	case "init":
		libcontainer.Init()
	case runtime.BounceArg:
		runtime.Bounce(os.Args[2:])
	case executor.CheckArg:
		executor.CheckState()
	case filterArg:
		loadFilter(os.Args[2])
	case forbidArg:
		forbidPrograms(os.Args[2:])
	case forbidCallArg:
		forbidCall(os.Args[2], os.Args[3:])
	case attachArg:
		attachAndWait(os.Args[2], os.Args[3])
	case "--socket":
		serve()
	}
}

// serve is the main function of crisp-executor.
func serve() {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if !seal.Sealed() {
		self, err := seal.Copy("/proc/self/exe")
		fail(err)
		fail(seal.Execute(self, os.Args, os.Environ()))
	}
	fail(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	fail(os.Chdir("/"))
	open := executor.New
	if executor.Resuming() {
		open = executor.Resume
	}
	x, err := open(executor.Options{Socket: os.Args[2], State: os.Args[4], Version: "test",
		Log: slog.New(slog.NewJSONHandler(os.Stderr, nil))})
	fail(err)
	x.Serve()
	os.Exit(0)
}

// fastInit is the setting of tests' requests; by default the fast init is on, as in crispd.
var fastInit = os.Getenv("CRISP_TEST_INIT") != "libcontainer"

// programs has the paths of the programs, built once for all tests.
var programs struct{ testbin, podinit, executor string }

// programsEnv names the directory of the programs that were built for all tests.
const programsEnv = "CRISP_TEST_PROGRAMS"

func TestMain(m *testing.M) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if dir := os.Getenv(programsEnv); dir != "" {
		fail(find(dir))
	}
	testns.Main(m, testns.Options{
		Prepare: func() ([]string, func(), error) {
			dir, err := os.MkdirTemp("", "crisp-executor-test")
			if err != nil {
				return nil, nil, err
			}
			if err := errors.Join(build(dir), find(dir), os.Chmod(dir, 0o711)); err != nil {
				return nil, nil, err
			}
			return []string{programsEnv + "=" + dir}, func() { os.RemoveAll(dir) }, nil
		},
	})
}

// find sets programs to those in CRISP_BIN, or else in dir.
func find(dir string) (err error) {
	bin := os.Getenv("CRISP_BIN")
	if programs.testbin = filepath.Join(bin, "testbin"); bin == "" || !testenv.Exists(programs.testbin) { // without Go it is in CRISP_BIN
		programs.testbin = filepath.Join(dir, "testbin")
	}
	if bin != "" {
		programs.executor, programs.podinit = filepath.Join(bin, "crisp-executor"), filepath.Join(bin, "crisp-podinit")
		return nil
	}
	programs.podinit = filepath.Join(dir, "crisp-podinit")
	programs.executor, err = os.Executable()
	return err
}

func build(dir string) error {
	if testenv.Exists(filepath.Join(os.Getenv("CRISP_BIN"), "testbin")) {
		return nil
	}
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "testbin"), "github.com/crisp-cri/crisp/test/testbin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build testbin: %w\n%s", err, out)
	}
	if os.Getenv("CRISP_BIN") != "" {
		return nil
	}
	cmd = exec.Command("gcc", "-Os", "-s", "-static", "-nostartfiles", "-o", filepath.Join(dir, "crisp-podinit"), "../podinit/podinit.c")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build crisp-podinit: %w\n%s", err, out)
	}
	return nil
}

// A node is an executor with the files of its containers, for one test.
type node struct {
	t      testing.TB
	dir    string // state, roots, logs
	cmd    *exec.Cmd
	client *wire.Client
	exits  chan wire.Exit
	ended  map[string]wire.Exit // from exits, not yet waited for
	ooms   chan wire.Event
	next   int
	cgroup string
}

// start starts an executor, which the end of the test removes with all its containers.
func start(t testing.TB) *node {
	t.Helper()
	n := newNode(t)
	t.Cleanup(n.end)
	n.launch()
	return n
}

// newNode returns a node whose executor the test starts itself.
func newNode(t testing.TB) *node {
	t.Helper()
	testenv.NeedRoot(t, "it runs containers")
	n := &node{t: t, dir: t.TempDir(), ended: make(map[string]wire.Exit)}
	n.cgroup = "/crisp-test-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(time.Now().UnixNano()%1e9, 36)
	return n
}

func (n *node) socket() string { return filepath.Join(n.dir, "executor.sock") }

// launch starts the executor process and connects to it.
func (n *node) launch() {
	n.t.Helper()
	n.spawn()
	n.connect()
}

func (n *node) spawn() {
	n.t.Helper()
	n.cmd = exec.Command(programs.executor, "--socket", n.socket(), "--state", n.dir)
	n.cmd.Args[0] = "crisp-executor"
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	n.cmd.Dir = "/"
	if testing.Verbose() {
		n.cmd.Stderr = os.Stderr
	}
	if path := os.Getenv(stderrEnv); path != "" {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			n.t.Fatal(err)
		}
		defer f.Close()
		n.cmd.Stderr = f
	}
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
}

// stderrEnv names the file that executors log to, for a test that reads it.
const stderrEnv = "CRISP_TEST_STDERR"

// connect connects and subscribes; the executor may still be starting.
func (n *node) connect() {
	n.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		c, err := wire.Dial(n.t.Context(), n.socket())
		if err == nil {
			if _, err = c.Call(n.t.Context(), wire.MethodSubscribe, nil, nil); err == nil {
				n.client = c
				break
			}
			c.Close()
		}
		if time.Now().After(deadline) {
			n.t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	exits, ooms := make(chan wire.Exit, 100), make(chan wire.Event, 100)
	n.exits, n.ooms = exits, ooms
	events := n.client.Events()
	go func() {
		for e := range events {
			switch e.Kind {
			case wire.EventExit:
				exits <- *e.Exit
			case wire.EventOOM:
				ooms <- e
			}
		}
	}()
}

// end removes every container and the executor.
func (n *node) end() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var all []wire.Info
	if _, err := n.client.Call(ctx, wire.MethodList, nil, &all); err != nil {
		n.t.Error(err)
	}
	for _, c := range all {
		if c.Exit == nil {
			if _, err := n.client.Call(ctx, wire.MethodSignal, wire.SignalRequest{ID: c.ID, Signal: int(unix.SIGKILL), All: true}, nil); err != nil {
				n.t.Error(err)
			}
			n.waitExit(c.ID)
		}
		if _, err := n.client.Call(ctx, wire.MethodDelete, wire.Ref{ID: c.ID}, nil); err != nil {
			n.t.Error(err)
		}
	}
	// An abandoned start is still being undone after its caller has the answer.
	for {
		_, err := n.client.Call(ctx, wire.MethodShutdown, nil, nil)
		if err == nil {
			break
		}
		if ctx.Err() != nil || !strings.Contains(err.Error(), "executor has ") {
			n.t.Error(err)
			n.cmd.Process.Kill() // else the wait for its end would hang
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	n.client.Close()
	if err := n.cmd.Wait(); err != nil {
		n.t.Errorf("executor: %v", err)
	}
	if _, err := os.Stat(n.socket()); err == nil {
		n.t.Error("the socket is still there")
	}
	names, _ := filepath.Glob(filepath.Join(n.dir, "executor", "*"))
	bundles, _ := filepath.Glob(filepath.Join(n.dir, "executor", "bundles", "*"))
	engines, _ := filepath.Glob(filepath.Join(n.dir, "executor", "engines", "*", "*"))
	names = slices.DeleteFunc(names, func(name string) bool { return filepath.Base(name) == "bundles" || filepath.Base(name) == "engines" })
	if names = slices.Concat(names, bundles, engines); len(names) > 0 {
		n.t.Errorf("state of containers is still there: %v", names)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(mounts, []byte(" "+n.dir+"/")) {
		n.t.Errorf("mounts are left below %s: %v", n.dir, err)
	}
	// rmdir(2) fails for a cgroup that has a process or another cgroup in it.
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*" + n.cgroup)
	for _, dir := range append(dirs, "/sys/fs/cgroup"+n.cgroup) {
		if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
			n.t.Errorf("cgroup %s: %v", dir, err)
		}
	}
}

func (n *node) call(method string, req, reply any, send ...*os.File) []*os.File {
	n.t.Helper()
	files, err := n.client.Call(n.t.Context(), method, req, reply, send...)
	if err != nil {
		n.t.Fatalf("%s: %v", method, err)
	}
	return files
}

func (n *node) fails(kind error, method string, req any) error {
	n.t.Helper()
	files, err := n.client.Call(n.t.Context(), method, req, nil)
	for _, f := range files {
		f.Close()
	}
	if err == nil || kind != nil && !errors.Is(err, kind) {
		n.t.Errorf("%s gave %v, want an error of kind %v", method, err, kind)
	}
	return err
}

// An option changes a container before it is run.
type option func(*wire.RunRequest, *specs.Spec)

// A box is a container of a test.
type box struct {
	*node
	id    string
	log   string
	exit  string
	root  string
	req   wire.RunRequest
	reply wire.RunReply
	fds   []*os.File
	kills int64 // reported by executors
}

// request returns the request for a container that runs testbin with args, not yet sent.
func (n *node) request(args []string, options ...option) *box {
	n.t.Helper()
	n.next++
	b := &box{node: n, id: fmt.Sprintf("c%d", n.next)}
	dir := filepath.Join(n.dir, "c", b.id)
	b.root, b.log, b.exit = filepath.Join(dir, "root"), filepath.Join(dir, "0.log"), filepath.Join(dir, "exit.json")
	for _, d := range []string{"proc", "dev", "tmp", "sys"} {
		if err := os.MkdirAll(filepath.Join(b.root, d), 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(b.root, "testbin"), nil, 0o755); err != nil {
		n.t.Fatal(err)
	}
	caps := []string{"CAP_KILL", "CAP_CHOWN", "CAP_SETUID"}
	spec := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: b.root},
		Process: &specs.Process{
			Args: append([]string{"/testbin"}, args...), Cwd: "/", Env: []string{"PATH=/"},
			Capabilities:    &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
			NoNewPrivileges: true,
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/testbin", Type: "bind", Source: programs.testbin, Options: []string{"bind", "ro"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755", "size=64k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: n.cgroup + "/" + b.id,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
			},
		},
	}
	b.req = wire.RunRequest{Settings: wire.Settings{ID: b.id, LogPath: b.log, ExitPath: b.exit}, Fast: fastInit}
	for _, o := range options {
		o(&b.req, spec)
	}
	b.req.Spec = spec
	return b
}

// run runs testbin with args in a container.
func (n *node) run(args []string, options ...option) *box {
	n.t.Helper()
	b := n.request(args, options...)
	b.fds = n.call(wire.MethodRun, b.req, &b.reply)
	n.t.Cleanup(b.drop)
	return b
}

// drop closes the container's descriptors that crispd would keep.
func (b *box) drop() {
	for _, f := range b.fds {
		f.Close()
	}
	b.fds = nil
}

// waitExit waits for a container's exit event.
func (n *node) waitExit(id string) wire.Exit {
	n.t.Helper()
	timeout := time.After(2 * time.Minute)
	for {
		if e, ok := n.ended[id]; ok {
			delete(n.ended, id)
			return e
		}
		select {
		case e := <-n.exits:
			n.ended[e.ID] = e
		case <-timeout:
			n.t.Fatalf("container %s has not exited", id)
		}
	}
}

func (b *box) wait() wire.Exit { b.t.Helper(); return b.waitExit(b.id) }

func (b *box) delete() { b.t.Helper(); b.call(wire.MethodDelete, wire.Ref{ID: b.id}, nil) }

func (b *box) signal(sig unix.Signal, all bool) {
	b.t.Helper()
	b.call(wire.MethodSignal, wire.SignalRequest{ID: b.id, Signal: int(sig), All: all}, nil)
}

// output returns the text of a stream in the log.
func (b *box) output(stream string) string {
	b.t.Helper()
	data, err := os.ReadFile(b.log)
	if err != nil {
		b.t.Fatal(err)
	}
	return joined(b.t, data, stream)
}

func joined(t testing.TB, log []byte, stream string) string {
	t.Helper()
	var out bytes.Buffer
	for line := range bytes.Lines(log) {
		if !bytes.HasSuffix(line, []byte{'\n'}) {
			break // the last line is being written
		}
		r, err := logread.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		if r.Stream == stream {
			out.Write(r.Content)
			if !r.Partial {
				out.WriteByte('\n')
			}
		}
	}
	return out.String()
}

// says waits until the log has the text.
func (b *box) says(text string) {
	b.t.Helper()
	eventually(b.t, func() bool { return strings.Contains(b.output(crilog.Stdout), text) }, "log has no %q", text)
}

func eventually(t testing.TB, ok func() bool, format string, args ...any) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf(format, args...)
		}
	}
}

// process returns a specs.Process that runs testbin.
func process(args ...string) json.RawMessage {
	data, _ := json.Marshal(&specs.Process{Args: append([]string{"/testbin"}, args...), Cwd: "/", Env: []string{"PATH=/"},
		Capabilities: &specs.LinuxCapabilities{}})
	return data
}

// An execed is an exec of a test.
type execed struct {
	*box
	wire.ExecReply
	files map[string]*os.File
}

func (b *box) exec(req wire.ExecRequest) *execed {
	b.t.Helper()
	req.ID, req.Fast = b.id, fastInit
	e := &execed{box: b, files: make(map[string]*os.File)}
	for _, f := range b.call(wire.MethodExec, req, &e.ExecReply) {
		e.files[f.Name()] = f
		b.t.Cleanup(func() { f.Close() })
	}
	return e
}

func (e *execed) wait() int32 {
	e.t.Helper()
	var reply wire.ExecWaitReply
	e.call(wire.MethodExecWait, wire.ExecRef{ExecID: e.ExecID}, &reply)
	return reply.Code
}

func line(t testing.TB, f *os.File) string {
	t.Helper()
	f.SetReadDeadline(time.Now().Add(2 * time.Minute))
	s, err := bufio.NewReader(f).ReadString('\n')
	if err != nil {
		t.Fatalf("%s: %v after %q", f.Name(), err, s)
	}
	return s
}

// until reads until it has read the text, and returns all of it.
func until(t testing.TB, f *os.File, text string) string {
	t.Helper()
	f.SetReadDeadline(time.Now().Add(2 * time.Minute))
	var got []byte
	for buf := make([]byte, 4<<10); !bytes.Contains(got, []byte(text)); {
		n, err := f.Read(buf)
		got = append(got, buf[:n]...)
		if err != nil {
			t.Fatalf("%s: %v after %q", f.Name(), err, got)
		}
	}
	return string(got)
}

// touch creates a file in the container's root.
func (b *box) touch(path string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.root, path), nil, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// alive reports whether a process exists and is not a zombie.
func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(data), ") Z ")
}
