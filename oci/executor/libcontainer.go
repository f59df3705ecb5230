package executor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/executor/fastinit"
	"github.com/crisp-cri/crisp/oci/executor/oomscore"
)

// A builtins has what libcontainer's containers share.
type builtins struct {
	root   string // libcontainer's state directory
	state  string // Options.State
	log    *slog.Logger
	reaper *reaper
	criu   *criu
	// hierarchies are the host's cgroup v1 mounts
	hierarchies []kernel.Hierarchy
	fast        *fastinit.Starter // nil if the kernel lacks what it needs
	noNodes     bool              // we cannot make device nodes
	filters     *filters

	converting sync.Mutex // held while specconv converts, see convert

	mu       sync.Mutex
	interned map[[32]byte]*profile // guarded by mu, see intern.go
}

// A builtin is libcontainer for one container.
type builtin struct {
	all     *builtins
	id      string
	handles handlePool
	fast    *fast               // nil unless fastinit started it, under this executor
	score   atomic.Pointer[int] // oom_score_adj of execs if an update has set it, under this executor
}

func newBuiltins(root string, o Options, r *reaper, p *criu) (*builtins, error) {
	list, err := v1Hierarchies()
	starter, serr := fastinit.New()
	if serr != nil {
		o.Log.Info("containers are started by libcontainer alone", "err", serr)
	}
	return &builtins{
		root: root, state: o.State, log: o.Log, reaper: r, criu: p,
		hierarchies: list, interned: make(map[[32]byte]*profile),
		fast: starter, noNodes: kernel.Probe().NoNodes, filters: newFilters(o.Log),
	}, errors.Join(err, findBlkioFiles())
}

func (b *builtins) of(id string) *builtin { return &builtin{all: b, id: id} }

// config converts a spec for libcontainer.
func (b *builtins) config(id string, spec *specs.Spec, systemd bool) (*configs.Config, error) {
	if spec.Linux.CgroupsPath == "" {
		return nil, fault.Invalid.Errorf("spec of container %s has no cgroups path", id)
	}
	if systemd {
		withoutTasksMax(spec.Linux)
	}
	config, err := b.convert(&specconv.CreateOpts{
		CgroupName:       id,
		UseSystemdCgroup: systemd,
		Spec:             spec,
	})
	if err != nil {
		return nil, fault.Invalid.Errorf("spec of container %s: %w", id, err)
	}
	config.Labels = append(slices.DeleteFunc(config.Labels, isCRIULabel), criuLabel+b.criu.config)
	b.nameBundle(id, config)
	b.intern(config.Seccomp)
	scoreHooks(config, configs.Prestart, configs.CreateRuntime, configs.Poststart)
	return config, nil
}

// convert has specconv convert a spec, and gives the configuration devices of its own: specconv
// puts the same default ones into all, and changes their owner for one with a user namespace, even
// if it fails afterwards.
func (b *builtins) convert(opts *specconv.CreateOpts) (*configs.Config, error) {
	b.converting.Lock()
	defer b.converting.Unlock()
	defer func() {
		for _, d := range specconv.AllowedDevices {
			d.Uid, d.Gid = 0, 0
		}
	}()
	config, err := specconv.CreateLibcontainerConfig(opts)
	if err != nil {
		return nil, err
	}
	for i, d := range config.Devices {
		own := *d
		config.Devices[i] = &own
	}
	return config, nil
}

// scoreHooks gives the container's oom_score_adj to hooks of these names, which the executor
// runs outside of the container. Those for its removal get it then: a program of another release
// may run them.
func scoreHooks(config *configs.Config, names ...configs.HookName) {
	if config.OomScoreAdj == nil { // of an earlier executor
		return
	}
	for _, name := range names {
		for i, h := range config.Hooks[name] {
			if c, ok := h.(configs.CommandHook); ok && c.Path != oomscore.Program {
				own := *c.Command
				own.Path, own.Args = oomscore.Command(*config.OomScoreAdj, c.Path, c.Args)
				config.Hooks[name][i] = configs.NewCommandHook(&own)
			}
		}
	}
}

// create creates the container. If one of that ID exists, sweep must remove it.
func (b *builtins) create(id string, config *configs.Config, sweep func(id string) error) (*builtin, error) {
	lc, err := libcontainer.Create(b.root, id, config)
	if errors.Is(err, libcontainer.ErrExist) {
		if err := sweep(id); err != nil {
			return nil, shortError(err)
		}
		lc, err = libcontainer.Create(b.root, id, config)
	}
	if err != nil {
		return nil, shortError(err)
	}
	if err := b.noteCgroups(lc); err != nil {
		return nil, errors.Join(err, os.RemoveAll(filepath.Join(b.root, id)))
	}
	c := b.of(id)
	c.handles.put(lc)
	return c, nil
}

// start implements ociRuntime.
func (b *builtin) start(ctx context.Context, p *plan) (_ *started, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)
	lc, err := b.borrow()
	if err != nil {
		return nil, err
	}
	defer func() {
		if b.fast == nil { // else it does not know the init
			b.handles.put(lc)
		}
	}()
	process := p.process
	process.Init = true
	group, err := cgroupPaths(lc)
	if err != nil {
		return nil, err
	}
	ends, err := connect(process, p.settings)
	if err != nil {
		return nil, err
	}
	steps.Add("stdio", ends.closeOurs)
	if err := giveStdio(process, p.config); err != nil {
		return nil, err
	}
	pid, trees, err := b.tryFast(ctx, p, ends, group)
	if errors.Is(err, fastinit.ErrUnsupported) {
		pid, trees, err = b.startGo(ctx, p, lc, ends, group)
	}
	steps.Add("prepared mounts", trees.detach)
	if stuck := new(stuckError); errors.As(err, &stuck) {
		steps = undo.Stack{} // the attempt still holds everything, and may pass descriptors on
		return nil, &stuckStartError{stuck, func() error {
			ends.closeOurs()
			trees.detach()
			return errors.Join(b.all.destroy(b.id, lc), os.RemoveAll(b.all.bundle(b.id)))
		}}
	}
	ends.closeTheirs()
	if err != nil {
		return nil, err
	}
	end := func() error { return b.all.end(process, pid) }
	steps.Add("process", end)
	if err := ends.receive(); err != nil {
		return nil, err
	}
	return &started{
		pid: pid, stdio: ends,
		served: func() { go trees.detach() }, // 2 ms; if an upgrade comes first, the mounts go with the sandbox
		end:    func() error { return errors.Join(end(), trees.detach()) },
	}, nil
}

// startGo starts the container's init with libcontainer.
func (b *builtin) startGo(ctx context.Context, p *plan, lc *libcontainer.Container, ends *stdioEnds, group map[string]string) (pid int, trees *preparedMounts, err error) {
	trees = b.all.prepareMounts(lc, p.config, p.req)
	if err := trees.null(p.process, ends); err != nil {
		return 0, trees, err
	}
	err = attempt(ctx, "start of container "+b.id, group, func() (err error) {
		if err := p.start(ctx, lc, p, group); err != nil {
			return shortError(err)
		}
		pid, err = b.all.knowStarted(p.process)
		return err
	}, func() error { return b.all.end(p.process, pid) })
	return pid, trees, err
}

// knowStarted keeps a process that libcontainer has started from being reaped as an orphan.
func (b *builtins) knowStarted(process *libcontainer.Process) (pid int, err error) {
	if pid, err = process.Pid(); err == nil {
		b.reaper.know(pid)
	}
	return pid, err
}

// end kills and reaps a process that could not be taken into service.
func (b *builtins) end(process *libcontainer.Process, pid int) error {
	if _, err := process.Pid(); err != nil { // fastinit's
		return b.reaper.end(pid, func() { unix.Wait4(pid, nil, 0, nil) })
	}
	return b.reaper.end(pid, func() { process.Wait() })
}

// execute starts an ordinary container, by executing its program.
func (b *builtins) execute(ctx context.Context, lc *libcontainer.Container, p *plan, group map[string]string) error {
	if err := lc.Start(p.process); err != nil {
		return err
	}
	pid, err := p.process.Pid()
	if err != nil {
		return err
	}
	if err := joinAll(group, pid); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return givenUp(ctx, "start of container "+lc.ID())
	}
	if err := p.joins(); err != nil {
		return err
	}
	return letRun(filepath.Join(b.root, lc.ID(), "exec.fifo"), pid)
}

// exec implements ociRuntime.
func (b *builtin) exec(ctx context.Context, e *execution, p *plan) (_ *started, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)
	ends, err := connect(p.process, p.settings)
	if err != nil {
		return nil, err
	}
	steps.Add("stdio", ends.closeOurs)
	ends.ownNull(p.process)
	pid, quick, err := b.execFast(ctx, e, p, ends)
	if !quick && err == nil {
		pid, err = b.startExec(ctx, e, p.process)
	}
	if stuck := new(stuckError); errors.As(err, &stuck) {
		steps = undo.Stack{}
		ends.closeAfter(stuck)
		return nil, err
	}
	ends.closeTheirs()
	if err != nil {
		return nil, err
	}
	end := func() error { return b.all.end(p.process, pid) }
	steps.Add("process", end)
	if err := ends.receive(); err != nil {
		return nil, err
	}
	return &started{pid: pid, stdio: ends, served: func() {}, end: end}, nil
}

// startExec makes libcontainer start the process of an exec.
func (b *builtin) startExec(ctx context.Context, e *execution, process *libcontainer.Process) (pid int, err error) {
	lc, err := b.borrow()
	if err != nil {
		return 0, fmt.Errorf("container %s: %w", b.id, err)
	}
	config := lc.Config()
	if err := giveStdio(process, &config); err != nil {
		b.handles.put(lc)
		return 0, err
	}
	err = attempt(ctx, "exec in container "+b.id, e.group, func() error {
		err := lc.Start(process)
		b.handles.put(lc)
		if err != nil {
			return shortError(err)
		}
		pid, err = b.all.knowStarted(process)
		return err
	}, func() error { return errors.Join(b.all.end(process, pid), e.endRest(pid)) })
	return pid, err
}

// subgroups implements ociRuntime.
func (b *builtin) subgroups() bool { return true }

// facts implements ociRuntime.
func (b *builtin) facts() (ownPID bool, cgroups map[string]string, err error) {
	if b.fast != nil {
		return b.fast.config.Namespaces.IsPrivate(configs.NEWPID), maps.Clone(b.fast.paths), nil
	}
	lc, err := b.borrow()
	if err != nil {
		return false, nil, err
	}
	defer b.handles.put(lc)
	config := lc.Config()
	cgroups, err = cgroupPaths(lc)
	return config.Namespaces.IsPrivate(configs.NEWPID), cgroups, err
}

// update implements ociRuntime.
func (b *builtin) update(r *specs.LinuxResources, score *int) error {
	lc, err := b.borrow()
	if err != nil {
		return err
	}
	// Set puts SkipDevices into the handle, which then cannot start processes; the state that it
	// saves does not have it.
	defer b.handles.drop()
	config := overlaid(lc.Config(), r)
	if score != nil {
		config.OomScoreAdj = score
	}
	if err := lc.Set(config); err != nil {
		return refusal(err)
	}
	if score != nil {
		b.score.Store(score)
	}
	return nil
}

// checkpoint implements ociRuntime.
func (b *builtin) checkpoint(ctx context.Context, dir string, init *child) error {
	// Our own handle, because libcontainer locks it while CRIU runs.
	lc, err := libcontainer.Load(b.all.root, b.id)
	if err != nil {
		return fmt.Errorf("load container %s: %w", b.id, err)
	}
	config := lc.Config()
	if slices.Contains(config.Labels, fastLabel) || slices.ContainsFunc(config.Mounts, func(m *configs.Mount) bool {
		return m.Destination == "/dev" && m.IsBind() && strings.HasPrefix(m.Source, b.all.state)
	}) {
		return fault.WrongState.Errorf("container %s was started when there was no CRIU here", b.id)
	}
	if err := checkDestinations(&config); err != nil {
		return fmt.Errorf("checkpoint container %s: %w", b.id, err)
	}
	stop := endingCRIU(ctx, dir)
	err = lc.Checkpoint(criuOpts(dir))
	stop()
	if err == nil {
		return nil
	}
	err = criuFailure(ctx, "checkpoint container "+b.id, filepath.Join(dir, "dump.log"), err)
	if lerr := unlock(init, unlockTime); lerr != nil {
		b.all.log.Warn("network of a container may be locked", "container", b.id, "err", lerr)
	}
	return err
}

// remove implements ociRuntime.
func (b *builtin) remove() error {
	if err := b.removeContainer(); err != nil {
		return err
	}
	return os.RemoveAll(b.all.bundle(b.id))
}

// removeContainer removes all but the bundle, which poststop hooks may read.
func (b *builtin) removeContainer() error {
	if b.fast != nil && len(b.fast.config.Hooks[configs.Poststop]) == 0 {
		return b.removeFast()
	}
	lc, err := b.borrow()
	if err == libcontainer.ErrNotExist {
		return nil // partly removed before
	}
	if err != nil {
		return err
	}
	if b.discard(lc) {
		return nil
	}
	if err := b.all.destroy(b.id, lc); err != nil {
		b.handles.put(lc)
		return fault.Unavailable.Errorf("remove container %s: %w", b.id, err)
	}
	return nil
}

// discard is destroy for a container of which only empty cgroups and a directory are left, as of
// nearly all that have ended. libcontainer would first look for processes, in the freezer and in
// a procfs mounted for that. What discard does not do is left to destroy.
func (b *builtin) discard(lc *libcontainer.Container) (done bool) {
	config := lc.Config()
	if config.Cgroups == nil || config.Cgroups.Systemd || config.IntelRdt != nil || len(config.Hooks[configs.Poststop]) > 0 {
		return false
	}
	paths, err := cgroupPaths(lc)
	if err != nil {
		return false
	}
	for _, dir := range paths {
		if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT { // it has processes, or cgroups below it
			return false
		}
	}
	return os.RemoveAll(filepath.Join(b.all.root, b.id)) == nil
}

// sweep implements ociRuntime.
func (b *builtin) sweep() error {
	dir := filepath.Join(b.all.root, b.id)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	lc, err := libcontainer.Load(b.all.root, b.id)
	if err != nil { // the executor died before it was written
		return sweepBegun(dir)
	}
	if paths, err := cgroupPaths(lc); err == nil {
		if err := endAll(paths); err != nil {
			return err
		}
	}
	if err := endInit(lc); err != nil {
		return err
	}
	if err := b.all.destroy(b.id, lc); err != nil {
		return fault.Unavailable.Errorf("remove container %s: %w", b.id, err)
	}
	return nil
}

// destroy removes the cgroup and the state of a container that has no process.
func (b *builtins) destroy(id string, lc *libcontainer.Container) error {
	ctx, cancel := context.WithTimeout(context.Background(), removeBound)
	defer cancel()
	return attempt(ctx, "removal of container "+id, nil, func() error {
		// Status makes the handle notice that its init is gone; otherwise Destroy would signal
		// the PID, which may have been reused.
		if _, err := lc.Status(); err != nil {
			return err
		}
		config := lc.Config() // its hooks are lc's own
		scoreHooks(&config, configs.Poststop)
		b.bearPoststop(id, &config)
		return lc.Destroy()
	}, nil)
}

// shortError removes the steps of libcontainer's start from its errors: users see them, and can
// act only on the last part.
func shortError(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for cut := true; cut; {
		cut = false
		for _, p := range []string{
			"unable to create new parent process: ",
			"unable to start container process: ",
			"error during container init: ",
			"error executing setns process: ",
			"unable to start init: ",
			"error starting setns process: ",
		} {
			if rest, ok := strings.CutPrefix(text, p); ok {
				text, cut = rest, true
			}
		}
	}
	return fault.KindOf(err).Errorf("%s", strings.ReplaceAll(text, " set in config.json", ""))
}

// endInit kills the init that an earlier executor started, if it is alive, and waits for its
// exit. An init that was moved is not in the container's cgroup, and one that is about to exit
// is in none for a while. The error is fault.Unavailable if it has not ended yet.
func endInit(lc *libcontainer.Container) error {
	state, err := lc.State()
	if err != nil || state.InitProcessPid <= 0 {
		return nil // its removal will report what is wrong
	}
	init, err := adoptChild(state.InitProcessPid, state.InitProcessStartTime, nil)
	if err != nil {
		return nil // it has ended
	}
	defer init.close()
	if err := init.signal(unix.SIGKILL); err != nil {
		return fmt.Errorf("kill process %d: %w", init.pid, err)
	}
	init.pidfd.SetReadDeadline(time.Now().Add(endPatience))
	if err := init.wait(); err != nil {
		return fault.Unavailable.Errorf("process %d does not end when killed: %w", init.pid, err)
	}
	return nil
}
