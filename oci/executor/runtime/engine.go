package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/executor/limits"
	"github.com/crisp-cri/crisp/oci/executor/oomscore"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/executor/stdio"
)

// An engine is an OCI runtime, a program such as runc or crun, in place of libcontainer for one
// container. It creates, starts, updates and deletes; once it has exited, the container's
// processes are children of the executor, which is a subreaper, and everything else is as with
// libcontainer.
//
// Data that must outlive the executor is in the container's bundle: a container with a bundle
// there is an engine's.
type engine struct {
	Path    string            // of the program
	Systemd bool              // systemd makes its cgroups
	OwnPID  bool              // as container.ownPID
	Cgroups map[string]string // as container.ref.Cgroups
	Score   int               // oom_score_adj of the program and of its children, including hooks

	all *engines
	id  string
	dir string // the bundle
}

// An engines has what the containers of OCI runtimes share.
type engines struct {
	root     string // libcontainer's state directory
	state    string // the executor's
	log      *slog.Logger
	reaper   *proc.Reaper
	serials  atomic.Uint64
	subgroup sync.Map // path of an engine → whether it has engine.subgroups
}

// engineTime bounds one call of an engine: a longer one hangs.
const engineTime = time.Minute

// bundle returns the directory of container id, if an engine runs it.
func (a *engines) bundle(id string) string { return filepath.Join(a.root, "bundles", id) }

func (a *engines) create(id, path string, systemd bool, config *configs.Config) (*engine, error) {
	if !filepath.IsAbs(path) || filepath.Base(id) != id {
		return nil, fault.Invalid.Errorf("engine %q of container %q is not an absolute path", path, id)
	}
	groups, err := manager.New(config.Cgroups)
	if err != nil {
		return nil, fault.Invalid.Errorf("cgroup of container %s: %w", id, err)
	}
	e := &engine{
		Path: path, Systemd: systemd, OwnPID: config.Namespaces.IsPrivate(configs.NEWPID),
		Cgroups: groups.GetPaths(), all: a, id: id, dir: a.bundle(id),
	}
	if config.OomScoreAdj != nil {
		e.Score = *config.OomScoreAdj
	}
	if err := os.MkdirAll(e.dir, 0o700); err != nil {
		return nil, err
	}
	return e, e.save()
}

// find returns the engine of a container from its bundle; nil = it is libcontainer's.
func (a *engines) find(id string) *engine {
	e := &engine{all: a, id: id, dir: a.bundle(id)}
	if atomicfile.ReadJSON(filepath.Join(e.dir, "engine.json"), e) != nil {
		return nil
	}
	return e
}

func (e *engine) save() error { return atomicfile.WriteJSON(filepath.Join(e.dir, "engine.json"), e) }

// settle drops the hierarchies in which the engine did not put the process: older engines do not
// know the v2 hierarchy of a hybrid host.
func (e *engine) settle(pid int) error {
	for controller, dir := range e.Cgroups {
		if pids, err := cgroups.GetPids(dir); err != nil || !slices.Contains(pids, pid) {
			delete(e.Cgroups, controller)
		}
	}
	return e.save()
}

func (e *engine) put(name string, v any) (path string, err error) {
	data, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	path = filepath.Join(e.dir, name)
	return path, os.WriteFile(path, data, 0o600)
}

// call runs the engine until it exits. ends, if not nil, is its stdio, inherited by a process
// that it starts; extra become descriptors 3 and on.
func (e *engine) call(ctx context.Context, ends *stdio.Ends, extra []*os.File, args ...string) error {
	defer e.all.reaper.ExpectChild()()
	ctx, cancel := context.WithTimeout(ctx, engineTime)
	defer cancel()
	log := filepath.Join(e.dir, "log."+args[0]+"."+e.all.serial())
	defer os.Remove(log)
	all := []string{"--root", e.root(), "--log", log, "--log-format", "json"}
	if e.Systemd {
		all = append(all, "--systemd-cgroup")
	}
	cmd := oomscore.Set(exec.Command(e.Path, append(all, args...)...), e.Score)
	cmd.Dir = e.dir
	cmd.Env = append(os.Environ(), proc.Mark(e.all.root, e.id))
	cmd.ExtraFiles = extra
	if ends != nil && ends.Theirs[1] != nil {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = ends.Theirs[0], ends.Theirs[1], ends.Theirs[2]
	}
	what := e.Path + " " + args[0] + " of container " + e.id
	err := proc.Attempt(ctx, what, nil, func() error {
		if err := cmd.Start(); err != nil {
			return err
		}
		if ctx.Err() != nil { // it was given up before the fork
			_ = cmd.Process.Kill()
		}
		return cmd.Wait()
	}, nil)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if text := lastError(log); text != "" {
		return &complaint{shortError(errors.New(text))}
	}
	return fault.Internal.Errorf("%s: %w", what, err)
}

// A complaint is what an engine says has failed.
type complaint struct{ error }

func (c *complaint) Unwrap() error { return c.error }

// errno returns the error of the kernel at the end of a complaint; 0 = none.
func (c *complaint) errno() unix.Errno {
	text := strings.ToLower(c.Error())
	for e := unix.EPERM; e <= unix.EHWPOISON; e++ {
		if strings.HasSuffix(text, ": "+e.Error()) {
			return e
		}
	}
	return 0
}

var enginePrefix = regexp.MustCompile(`^(\S+ )?(create|start|exec|update|delete) failed: `)

// lastError returns the last error in an engine's log.
func lastError(log string) string {
	data, err := os.ReadFile(log)
	if err != nil {
		return ""
	}
	text := ""
	for line := range strings.Lines(string(data)) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal([]byte(line), &entry) == nil && (entry.Level == "error" || entry.Level == "fatal") {
			text = entry.Msg
		}
	}
	return enginePrefix.ReplaceAllString(text, "")
}

// serial returns a number that is unique in this executor.
func (a *engines) serial() string { return strconv.FormatUint(a.serials.Add(1), 36) }

// pidOf reads the PID that the engine wrote to --pid-file, and protects the process from being
// reaped as an orphan.
func (e *engine) pidOf(file string) (int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, fault.Internal.Errorf("%s reported no process: %w", e.Path, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 0 {
		return 0, fault.Internal.Errorf("%s reported process %q", e.Path, data)
	}
	e.all.reaper.Know(pid)
	return pid, nil
}

func (e *engine) Update(r *specs.LinuxResources, _ *int) error {
	file, err := e.put("resources.json", r)
	if err != nil {
		return err
	}
	err = e.call(context.Background(), nil, nil, "update", "--resources", file, e.id)
	if said := new(complaint); errors.As(err, &said) {
		if no := said.errno(); no != 0 {
			return limits.KindOf(no).Errorf("%w", err)
		}
		return fault.Invalid.Errorf("%w", err)
	}
	return err
}

// Remove implements Runtime: it has the engine delete the container, and kill it if it still
// runs. If the engine fails, remove does without it: an engine that is no longer installed must
// not keep a container for ever.
func (e *engine) Remove() error {
	if err := e.call(context.Background(), nil, nil, "delete", "--force", e.id); err != nil {
		if err := proc.End(proc.InCgroup(e.Cgroups)); err != nil {
			return fault.Unavailable.Errorf("remove container %s: %w", e.id, err)
		}
		e.all.log.Warn("engine did not delete the container", "container", e.id, "err", err)
		if err := cgroups.RemovePaths(maps.Clone(e.Cgroups)); err != nil {
			return fault.Unavailable.Errorf("remove cgroup of container %s: %w", e.id, err)
		}
		if err := os.RemoveAll(filepath.Join(e.root(), e.id)); err != nil {
			return err
		}
	}
	return os.RemoveAll(e.dir)
}

func (e *engine) sweep() error {
	if err := proc.End(proc.InCgroup(e.Cgroups)); err != nil {
		return err
	}
	return e.Remove()
}

func (e *engine) Facts() (ownPID bool, groups map[string]string, err error) {
	return e.OwnPID, e.Cgroups, nil
}

func (e *engine) Checkpoint(ctx context.Context, _ string, _ *proc.Process) error {
	return e.CanCheckpoint(ctx)
}

func (e *engine) CanCheckpoint(context.Context) error {
	return fault.WrongState.Errorf("container %s is run by %s: only libcontainer's can be checkpointed", e.id, e.Path)
}

// root returns the engine's own state directory.
func (e *engine) root() string {
	return filepath.Join(e.all.root, "engines", strings.ReplaceAll(strings.Trim(e.Path, "/"), "/", "-"))
}

// Subgroups implements Runtime. It looks for a flag that runc has had since 1.1 and crun
// since 1.6, on cgroup v2 only.
func (e *engine) Subgroups() bool {
	if known, ok := e.all.subgroup.Load(e.Path); ok {
		return known.(bool)
	}
	ctx, cancel := context.WithTimeout(context.Background(), engineTime)
	defer cancel()
	help, err := oomscore.Set(exec.CommandContext(ctx, e.Path, "exec", "--help"), 0).CombinedOutput()
	text := string(help)
	can := err == nil && strings.Contains(text, "--cgroup") &&
		(cgroups.IsCgroup2UnifiedMode() || strings.Contains(text, "<controller>"))
	if err == nil { // else the failure may be transient
		e.all.subgroup.Store(e.Path, can)
	}
	return can
}

// groupFlag returns the --cgroup flag for a result of makeGroup.
func groupFlag(group map[string]string) []string {
	for controller, name := range group {
		if controller != "" {
			name = controller + ":" + name
		}
		return []string{"--cgroup", name}
	}
	return nil
}

// preserve returns the flag that passes n additional descriptors.
func preserve(n int) []string {
	if n == 0 {
		return nil
	}
	return []string{"--preserve-fds", fmt.Sprint(n)}
}

// engineVersion is the version of the runtime specification that a bundle claims. crun before
// 1.8.5 refuses later ones ("unknown version specified"); runtimes that know later fields read
// them anyway.
const engineVersion = "1.0.2"

// noSubgroup keeps crun from creating a cgroup of its own below a scope, where we would not look
// for the container's processes and counters: crun(1).
const noSubgroup = "run.oci.systemd.subgroup"

func (e *engine) Start(ctx context.Context, p *Plan) (_ *Started, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)
	done := e.all.reaper.ExpectChild()
	steps.Add("expected child", func() error { done(); return nil })
	if err := carry(p.process); err != nil {
		return nil, err
	}
	spec := p.spec
	spec.Process.Args, spec.Process.Env = p.process.Args, p.process.Env
	spec.Version = engineVersion
	if spec.Annotations == nil {
		spec.Annotations = make(map[string]string)
	}
	spec.Annotations[noSubgroup] = ""
	if _, err := e.put("config.json", spec); err != nil {
		return nil, err
	}
	ends, pid, err := e.create(ctx, p)
	if err != nil {
		return nil, err
	}
	steps.Add("stdio", ends.Close)
	forget := func() error { e.all.reaper.Forget(pid); return nil }
	steps.Add("process", forget)
	if err := p.complete(pid); err != nil {
		return nil, err
	}
	if err := e.call(ctx, nil, nil, "start", e.id); err != nil {
		return nil, err
	}
	return &Started{PID: pid, Stdio: ends, Served: done, End: func() error { done(); return forget() }}, nil
}

// create has the engine create the container's init, which waits for "start".
func (e *engine) create(ctx context.Context, p *Plan) (_ *stdio.Ends, pid int, err error) {
	pidFile := filepath.Join(e.dir, "pid")
	args := []string{"create", "--bundle", e.dir, "--pid-file", pidFile}
	args = append(args, preserve(len(p.process.ExtraFiles))...)
	ends, err := e.callWithStdio(ctx, p, args)
	if err != nil {
		return nil, 0, err
	}
	if pid, err = e.pidOf(pidFile); err == nil {
		err = e.settle(pid)
	}
	if err != nil {
		ends.Close()
		return nil, 0, err
	}
	return ends, pid, nil
}

func (e *engine) Exec(ctx context.Context, p *Plan) (_ *Started, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)
	done := e.all.reaper.ExpectChild()
	steps.Add("expected child", func() error { done(); return nil })
	ends, pid, err := e.execProcess(ctx, p)
	if err != nil {
		return nil, err
	}
	return &Started{PID: pid, Stdio: ends, Served: done, End: func() error {
		defer done()
		defer e.all.reaper.Forget(pid)
		return unix.Kill(pid, unix.SIGKILL) // our child, and not reaped
	}}, nil
}

// execProcess makes the engine start another process in the container.
func (e *engine) execProcess(ctx context.Context, p *Plan) (_ *stdio.Ends, pid int, err error) {
	process, spec := p.process, p.spec.Process
	if err := carry(process); err != nil {
		return nil, 0, err
	}
	spec.Args, spec.Env, spec.Terminal = process.Args, process.Env, p.TTY
	if spec.OOMScoreAdj != nil { // it may have been changed since the start
		with := *e
		with.Score = *spec.OOMScoreAdj
		e = &with
	}
	serial := e.all.serial()
	file, err := e.put("process."+serial, spec)
	if err != nil {
		return nil, 0, err
	}
	defer os.Remove(file)
	pidFile := filepath.Join(e.dir, "pid."+serial)
	defer os.Remove(pidFile)
	args := []string{"exec", "--detach", "--process", file, "--pid-file", pidFile}
	args = append(append(args, groupFlag(process.SubCgroupPaths)...), preserve(len(p.process.ExtraFiles))...)
	ends, err := e.callWithStdio(ctx, p, args)
	if err != nil {
		return nil, 0, errors.Join(err, e.endStarted(pidFile))
	}
	if pid, err = e.pidOf(pidFile); err != nil {
		ends.Close()
		return nil, 0, err
	}
	if size := spec.ConsoleSize; size != nil {
		err = ends.SetSize(uint16(size.Width), uint16(size.Height))
	}
	return ends, pid, err
}

// endStarted ends the process of an exec that an engine has started before it failed.
func (e *engine) endStarted(pidFile string) error {
	pid, err := e.pidOf(pidFile)
	if err != nil {
		return nil // it has started none
	}
	defer e.all.reaper.Forget(pid)
	return proc.End(proc.Child(pid))
}

// callWithStdio calls the engine for a process with its own stdio.
func (e *engine) callWithStdio(ctx context.Context, p *Plan, args []string) (_ *stdio.Ends, err error) {
	if p.TTY {
		return e.callConsole(ctx, p.process, args)
	}
	ends, err := connect(p)
	if err != nil {
		return nil, err
	}
	ownNull(p.process, ends)
	err = e.call(ctx, ends, p.process.ExtraFiles, append(args, e.id)...)
	if stuck := new(proc.StuckError); errors.As(err, &stuck) {
		stuck.WhenOver(func() { ends.Close() }) // it may still pass them on
		return nil, err
	}
	ends.CloseTheirs()
	if err != nil {
		ends.Close()
		return nil, err
	}
	return ends, nil
}

// callConsole calls the engine for a process with a terminal, which the engine sends to the
// given socket.
func (e *engine) callConsole(ctx context.Context, process *libcontainer.Process, args []string) (*stdio.Ends, error) {
	// Not in the bundle: a socket's path has at most 108 bytes (unix(7)).
	socket := filepath.Join(e.all.state, "tty."+e.all.serial())
	l, err := listen(socket) // a dead executor may have left a socket of that number
	if err != nil {
		return nil, fmt.Errorf("socket for a terminal: %w", err)
	}
	defer l.Close() // and remove it
	if err := e.call(ctx, nil, process.ExtraFiles, append(args, "--console-socket", socket, e.id)...); err != nil {
		return nil, err
	}
	// The engine has exited, so whatever it sent has arrived.
	if err := l.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return nil, err
	}
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, fault.Internal.Errorf("%s sent no terminal: %w", e.Path, err)
	}
	defer conn.Close()
	ends := &stdio.Ends{}
	if ends.Console, err = conn.File(); err != nil {
		return nil, err
	}
	return ends, ends.Receive()
}

// listen listens at path, a socket that only we use. It replaces one left by an earlier
// executor.
func listen(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}
