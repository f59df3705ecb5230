package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/executor/shim"
	"github.com/crisp-cri/crisp/oci/executor/stdio"
)

// Start implements Runtime. What it leaves behind when it fails, Remove removes.
func (t *Task) Start(ctx context.Context, p *Plan) (_ *Started, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)
	if t.isSandbox() {
		return t.startSandbox(ctx, p)
	}
	root, err := t.writeSpec(p)
	if err != nil {
		return nil, err
	}
	ends, fifos := &stdio.Ends{}, stdio.FIFOs{}
	if !p.Silent {
		fifos = t.fifos()
		if err := fifos.Make(); err != nil {
			return nil, err
		}
		if ends, err = fifos.Open(); err != nil {
			return nil, err
		}
		steps.Add("stdio", ends.Close)
	}
	if t.Sandbox == t.id {
		if err := t.startShim(ctx); err != nil {
			return nil, t.given(ctx, err)
		}
	}
	if !p.Silent {
		t.keep()
	}
	req := shim.CreateRequest{
		ID: t.id, Bundle: t.dir, Rootfs: root, Options: t.options(),
		IO: shim.IO{Terminal: t.TTY, Stdin: fifos.Stdin, Stdout: fifos.Stdout, Stderr: fifos.Stderr},
	}
	bound := shimStart
	if p.restore != nil {
		bound = shimDump
		end, err := t.restoring(ctx, p, &req)
		if err != nil {
			return nil, err
		}
		defer end()
	}
	pid := 0
	err = t.ask(ctx, shimStart, func(ctx context.Context, c *shim.Client) (err error) {
		pid, err = c.Create(ctx, req)
		return err
	})
	if err != nil {
		return nil, t.given(ctx, err)
	}
	err = t.ask(ctx, bound, func(ctx context.Context, c *shim.Client) error {
		started, err := c.Start(ctx, t.id, "")
		if started > 0 {
			pid = started
		}
		return err
	})
	if err != nil && ctx.Err() == nil && p.restore != nil && t.isRunc() {
		return nil, p.restore.failed(t.id, err)
	}
	if err != nil {
		return nil, t.given(ctx, err)
	}
	if pid <= 0 {
		pid = t.ShimPID // what stands for it
	}
	if err := fifos.Settle(ends); err != nil {
		return nil, err
	}
	t.settle(pid)
	if err := t.strayed(ctx, p, pid); err != nil {
		return nil, err
	}
	return t.started(pid, ends), nil
}

// started begins to wait for the container's process, which has been started.
func (t *Task) started(pid int, ends *stdio.Ends) *Started {
	nothing := func() error { return nil }
	return &Started{PID: pid, Process: t.watch(pid), Stdio: ends, Served: func() {}, End: nothing}
}

// given is the error of a start: why it was given up, or what the shim says.
func (t *Task) given(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return proc.GivenUp(ctx, "start of container "+t.id)
	}
	if words := t.link().words(); words != "" && fault.KindOf(err) == fault.Unavailable {
		err = fmt.Errorf("%w; it printed: %s", err, words)
	}
	return reported(err)
}

// specFile is the file in a bundle with the specification.
const specFile = "config.json"

// writeSpec writes it, and returns the root as the mount that the shim is given.
func (t *Task) writeSpec(p *Plan) ([]shim.Mount, error) {
	spec, process, root := *p.spec, *p.spec.Process, *p.spec.Root
	process.Args, process.Env = p.process.Args, p.process.Env
	spec.Process, spec.Root = &process, &root
	if spec.Linux.Resources == nil { // gVisor's shim fails without, when it has to change them
		linux := *spec.Linux
		linux.Resources = &specs.LinuxResources{}
		spec.Linux = &linux
	}
	if t.isRunc() { // a pod's own would choose what CRIU does
		spec.Annotations = maps.Clone(spec.Annotations)
		if spec.Annotations == nil {
			spec.Annotations = make(map[string]string)
		}
		spec.Annotations[criuAnnotation] = t.all.criu.config
	}
	var mounts []shim.Mount
	if t.Mounts {
		mode := "rw"
		if root.Readonly {
			mode = "ro"
		}
		mounts = []shim.Mount{{Type: "bind", Source: root.Path, Options: []string{"rbind", mode}}}
		root.Path = shimRoot
		if err := os.MkdirAll(filepath.Join(t.dir, shimRoot), 0o755); err != nil {
			return nil, err
		}
	}
	data, err := json.Marshal(&spec)
	if err != nil {
		return nil, err
	}
	return mounts, os.WriteFile(filepath.Join(t.dir, specFile), data, 0o600)
}

// startShim has the program start the shim, and connects to it.
func (t *Task) startShim(ctx context.Context) error {
	t.all.receive(t)
	l := t.link()
	if err := l.listen(t.dir, t.id); err != nil {
		return fmt.Errorf("log of shim %s: %w", t.Path, err)
	}
	ctx, cancel := context.WithTimeout(ctx, shimStart)
	defer cancel()
	keeper, err := shim.NewKeeper()
	if err != nil {
		return err
	}
	defer keeper.Close()
	program := t.program()
	program.Keeper = keeper
	at, err := shim.Start(ctx, program)
	if err != nil {
		return err
	}
	t.note(func() { t.Address, t.Keeper = at, keeper.Number })
	ctx, cancel = context.WithTimeout(ctx, shimCall)
	defer cancel()
	client, err := t.client(ctx)
	if err != nil {
		return err
	}
	// A shim without containers may not know the call, or have no answer.
	pid, _ := client.Connect(ctx, t.id)
	if pid == 0 {
		pid = at.Listener()
	}
	t.note(func() { t.ShimPID = pid })
	return nil
}

// listen begins to read what the shim prints.
func (l *shimLink) listen(bundle, id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.output != nil {
		return nil
	}
	log, err := shim.OpenLog(bundle)
	if err != nil {
		return err
	}
	l.output = log
	go log.Lines(func(line string) {
		l.mu.Lock()
		l.last = append(l.last, line)
		l.last = l.last[max(len(l.last)-keptLines, 0):]
		l.mu.Unlock()
		l.log.Info("shim printed a line", "container", id, "line", line)
	})
	return nil
}

// keptLines is how much of what a shim prints may explain its end.
const keptLines = 3

// words returns the last lines that the shim has printed.
func (l *shimLink) words() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.last, "; ")
}

// Adopt returns the process of a container that an earlier executor has started.
func (t *Task) Adopt(pid int) *proc.Process {
	if t.Sandbox == t.id {
		if err := t.link().listen(t.dir, t.id); err != nil {
			t.all.log.Warn("output of a shim cannot be read", "container", t.id, "err", err)
		}
	}
	t.all.receive(t)
	p := t.watch(pid)
	if t.Closed {
		go t.closeStdin()
	}
	return p
}

// watch waits for the container's process.
func (t *Task) watch(pid int) *proc.Process {
	t.process = proc.Remote(pid, func(sig unix.Signal) error { return t.Signal(sig, false) })
	t.all.expect(t)
	go t.await("", t.process)
	return t.process
}

// StartTime returns when the process of a container began, as far as this kernel knows it. It is
// never 0, which means that a process has not begun.
func (t *Task) StartTime() uint64 {
	if began, err := proc.StartTime(t.process.PID); err == nil && began > 0 {
		return began
	}
	return 1
}

// Exec implements Runtime. p.place.ID is the exec's.
func (t *Task) Exec(ctx context.Context, p *Plan) (_ *Started, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)
	e := t.exec(p.place.ID)
	if err := os.Mkdir(e.dir, 0o700); err != nil {
		return nil, err
	}
	steps.Add("exec", func() error { e.discard(); return nil })
	fifos := stdio.FIFOsIn(e.dir, p.Stdin, p.TTY)
	if err := fifos.Make(); err != nil {
		return nil, err
	}
	ends, err := fifos.Open()
	if err != nil {
		return nil, err
	}
	steps.Add("stdio", ends.Close)
	spec := *p.spec.Process
	spec.Args, spec.Env, spec.Terminal = p.process.Args, p.process.Env, p.TTY
	pid, err := e.begin(ctx, &spec, shim.IO{Terminal: p.TTY, Stdin: fifos.Stdin, Stdout: fifos.Stdout, Stderr: fifos.Stderr})
	if err != nil {
		if ctx.Err() != nil {
			return nil, proc.GivenUp(ctx, "exec in container "+t.id)
		}
		return nil, reported(err)
	}
	if err := fifos.Settle(ends); err != nil {
		return nil, err
	}
	e.watch(pid)
	return &Started{PID: pid, Process: e.Process, Exec: e, Stdio: ends, Served: func() {}, End: func() error { e.discard(); return nil }}, nil
}

// begin has the shim add the process and start it.
func (e *TaskExec) begin(ctx context.Context, spec *specs.Process, io shim.IO) (pid int, err error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return 0, err
	}
	err = e.task.ask(ctx, shimStart, func(ctx context.Context, c *shim.Client) error {
		if err := c.Exec(ctx, shim.ExecRequest{ID: e.task.id, ExecID: e.id, IO: io, Spec: shim.ProcessSpec(data)}); err != nil {
			return err
		}
		pid, err = c.Start(ctx, e.task.id, e.id)
		return err
	})
	if size := spec.ConsoleSize; err == nil && size != nil {
		_ = e.Resize(uint16(size.Width), uint16(size.Height)) // it may have ended
	}
	return pid, err
}

// A TaskExec is an exec in a Task.
type TaskExec struct {
	Process *proc.Process // set once it has been started

	task    *Task
	id, dir string
}

// execPrefix begins the names of the directories with the FIFOs of execs, in the bundle.
const execPrefix = "exec-"

func (t *Task) exec(id string) *TaskExec {
	return &TaskExec{task: t, id: id, dir: filepath.Join(t.dir, execPrefix+id)}
}

// ResumeExec returns an exec that was started before an upgrade.
func (t *Task) ResumeExec(id string, pid int) *TaskExec {
	e := t.exec(id)
	e.watch(pid)
	return e
}

func (e *TaskExec) watch(pid int) {
	e.Process = proc.Remote(pid, func(sig unix.Signal) error { return e.kill(sig) })
	go e.task.await(e.id, e.Process)
}

func (e *TaskExec) kill(sig unix.Signal) error {
	err := e.task.askAnyway(context.Background(), shimCall, func(ctx context.Context, c *shim.Client) error {
		return c.Kill(ctx, e.task.id, e.id, int(sig), false)
	})
	if fault.KindOf(err) == fault.NotFound {
		return nil // it has ended
	}
	return reported(err)
}

// Resize sets the size of the exec's terminal.
func (e *TaskExec) Resize(width, height uint16) error {
	err := e.task.ask(context.Background(), shimCall, func(ctx context.Context, c *shim.Client) error {
		return c.ResizePty(ctx, e.task.id, e.id, width, height)
	})
	if fault.KindOf(err) == fault.NotFound {
		return nil // it has ended
	}
	return reported(err)
}

// CloseStdin closes the exec's stdin once it has read what is in the FIFO.
func (e *TaskExec) CloseStdin() {
	_ = e.task.ask(context.Background(), shimCall, func(ctx context.Context, c *shim.Client) error {
		return c.CloseIO(ctx, e.task.id, e.id) // it may have ended
	})
}

// Forget has the shim forget an exec that has ended.
func (e *TaskExec) Forget() {
	err := e.task.ask(context.Background(), shimCall, func(ctx context.Context, c *shim.Client) error {
		_, err := c.Delete(ctx, e.task.id, e.id)
		return err
	})
	if err != nil && fault.KindOf(err) != fault.NotFound && !e.task.process.Ending() {
		e.task.all.log.Warn("shim did not forget an exec", "container", e.task.id, "err", err)
	}
	if err := os.RemoveAll(e.dir); err != nil {
		e.task.all.log.Warn("directory of an exec was not removed", "container", e.task.id, "err", err)
	}
}

// discard ends an exec that is of no use, and forgets it.
func (e *TaskExec) discard() {
	if e.kill(unix.SIGKILL) == nil {
		ctx, cancel := context.WithTimeout(context.Background(), execEnd)
		defer cancel()
		_ = e.task.askAnyway(ctx, execEnd, func(ctx context.Context, c *shim.Client) error {
			_, err := c.Wait(ctx, e.task.id, e.id)
			return err
		})
	}
	e.Forget()
}

// execEnd bounds how long a killed exec is waited for.
const execEnd = 5 * time.Second

// EndForeign ends the execs of an executor that died: as with libcontainer's, no caller will ask for
// their exit codes. They are those that are there when it is called; ending them may take longer.
func (t *Task) EndForeign() {
	dirs, _ := filepath.Glob(filepath.Join(t.dir, execPrefix+"*"))
	go func() {
		for _, dir := range dirs {
			t.exec(filepath.Base(dir)[len(execPrefix):]).discard()
		}
	}()
}
