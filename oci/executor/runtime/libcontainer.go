package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/executor/fastinit"
	"github.com/crisp-cri/crisp/oci/executor/limits"
	"github.com/crisp-cri/crisp/oci/executor/oomscore"
	"github.com/crisp-cri/crisp/oci/executor/proc"
)

// A builtins has what libcontainer's containers share.
type builtins struct {
	root   string // libcontainer's state directory
	state  string // the executor's
	log    *slog.Logger
	reaper *proc.Reaper
	criu   *CRIU
	// hierarchies are the host's cgroup v1 mounts
	hierarchies []kernel.Hierarchy
	fast        *fastinit.Starter // nil if the kernel lacks what it needs
	host        kernel.Features

	converting sync.Mutex // held while specconv converts, see convert

	mu       sync.Mutex
	profiles []*sharedProfile // guarded by mu
	devices  devicePrograms
}

// A builtin is libcontainer for one container.
type builtin struct {
	all    *builtins
	id     string
	handle atomic.Pointer[libcontainer.Container] // lent to one caller at a time, see borrow
	fast   *fastState                             // nil unless fastinit started it, under this executor
	score  atomic.Pointer[int]                    // oom_score_adj of execs if an update has set it, under this executor
}

func newBuiltins(root, state string, log *slog.Logger, r *proc.Reaper, p *CRIU) (*builtins, error) {
	list, err := kernel.Hierarchies()
	starter, serr := fastinit.New()
	if serr != nil {
		log.Info("containers are started by libcontainer alone", "err", serr)
	}
	return &builtins{
		root: root, state: state, log: log, reaper: r, criu: p,
		hierarchies: slices.DeleteFunc(list, kernel.Hierarchy.V2),
		devices:     devicePrograms{all: make(map[string]*os.File)},
		fast:        starter, host: kernel.Probe(),
	}, errors.Join(err, findBlkioFiles())
}

func (b *builtins) of(id string) *builtin { return &builtin{all: b, id: id} }

// borrow lends libcontainer's handle of the container to one caller at a time. libcontainer locks the
// handle from the start of an exec until its program runs; other callers meanwhile get another one,
// loaded from libcontainer's state.
func (b *builtin) borrow() (*libcontainer.Container, error) {
	if lc := b.handle.Swap(nil); lc != nil {
		return lc, nil
	}
	return b.all.load(b.id)
}

// putBack returns a handle; one is kept.
func (b *builtin) putBack(lc *libcontainer.Container) { b.handle.CompareAndSwap(nil, lc) }

// config converts a spec for libcontainer.
func (b *builtins) config(id string, spec *specs.Spec, systemd bool) (*configs.Config, error) {
	if spec.Linux.CgroupsPath == "" {
		return nil, fault.Invalid.Errorf("spec of container %s has no cgroups path", id)
	}
	if systemd {
		limits.WithoutTasksMax(spec.Linux)
	}
	spec, err := b.withoutCgroups(id, spec)
	if err != nil {
		return nil, err
	}
	own, linux := *spec, *spec.Linux
	own.Linux, linux.Seccomp = &linux, nil
	users := joinedUsers(&linux)
	config, err := b.convert(&specconv.CreateOpts{
		CgroupName:       id,
		UseSystemdCgroup: systemd,
		RootlessCgroups:  kernel.NoCgroups(),
		Spec:             &own,
	})
	if err == nil {
		config.Seccomp, err = b.profileOf(spec.Linux.Seccomp)
	}
	if err != nil {
		return nil, fault.Invalid.Errorf("spec of container %s: %w", id, err)
	}
	if users != "" {
		config.Namespaces.Add(configs.NEWUSER, users)
	}
	// As a mount over the root it would not bind the first process, or would bind it alone.
	isRoot := func(name string) bool { return path.Clean("/"+name) == "/" }
	if slices.ContainsFunc(config.MaskPaths, isRoot) {
		return nil, fault.Invalid.Errorf("spec of container %s: the root directory cannot be masked", id)
	}
	all := len(config.ReadonlyPaths)
	config.ReadonlyPaths = slices.DeleteFunc(slices.Clone(config.ReadonlyPaths), isRoot)
	config.Readonlyfs = config.Readonlyfs || len(config.ReadonlyPaths) < all
	config.Labels = append(slices.DeleteFunc(config.Labels, func(l string) bool {
		return strings.HasPrefix(l, criuLabel) || strings.HasPrefix(l, bundleLabel)
	}), criuLabel+b.criu.config, bundleLabel+b.bundle(id))
	scoreHooks(config, configs.Prestart, configs.CreateRuntime, configs.Poststart)
	return config, nil
}

// joinedUsers takes the path of a user namespace out of linux if that has the mappings, too: specconv
// would have two children read them, to compare them. Each is a fork of the whole program, and takes
// milliseconds.
func joinedUsers(linux *specs.Linux) (path string) {
	if linux.UIDMappings == nil || linux.GIDMappings == nil {
		return ""
	}
	linux.Namespaces = slices.Clone(linux.Namespaces)
	for i := range linux.Namespaces {
		if ns := &linux.Namespaces[i]; ns.Type == specs.UserNamespace {
			path, ns.Path = ns.Path, ""
		}
	}
	return path
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
	c.putBack(lc)
	return c, nil
}

func (b *builtin) Start(ctx context.Context, p *Plan) (_ *Started, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)
	lc, err := b.borrow()
	if err != nil {
		return nil, err
	}
	process := p.process
	process.Init = true
	keep := func() {
		// A handle whose fork failed panics at most calls; one of fastinit's container knows no init.
		if _, err := process.Pid(); err == nil {
			b.putBack(lc)
		}
	}
	group, err := cgroupPaths(lc)
	if err != nil {
		return nil, err
	}
	ends, err := connect(p)
	if err != nil {
		return nil, err
	}
	steps.Add("stdio", ends.Close)
	if err := giveStdio(process, p.config); err != nil {
		return nil, err
	}
	pid, trees, err := b.tryFast(ctx, p, ends, group)
	if errors.Is(err, fastinit.ErrUnsupported) {
		pid, err = b.startGo(ctx, p, lc, group)
	}
	steps.Add("prepared mounts", trees.detach)
	if stuck := new(proc.StuckError); errors.As(err, &stuck) {
		steps = undo.Stack{} // the attempt still holds everything, and may pass descriptors on
		return nil, &StuckStartError{stuck, func() error {
			keep()
			ends.Close()
			trees.detach()
			return b.Remove()
		}}
	}
	keep()
	ends.CloseTheirs()
	if err != nil {
		return nil, err
	}
	end := func() error { return b.all.end(process, pid) }
	steps.Add("process", end)
	if err := ends.Receive(); err != nil {
		return nil, err
	}
	return &Started{
		PID: pid, Stdio: ends,
		Served: func() { go trees.detach() }, // 2 ms; if an upgrade comes first, the mounts go with the sandbox
		End:    func() error { return errors.Join(end(), trees.detach()) },
	}, nil
}

// startGo starts the container's init with libcontainer.
func (b *builtin) startGo(ctx context.Context, p *Plan, lc *libcontainer.Container, group map[string]string) (pid int, err error) {
	if err := errors.Join(carry(p.process), examineNull(p.config)); err != nil {
		return 0, err
	}
	err = proc.Attempt(ctx, "start of container "+b.id, group, func() (err error) {
		if err := p.start(ctx, lc, p, group); err != nil {
			return shortError(err)
		}
		pid, err = b.all.knowStarted(p.process)
		return err
	}, func() error { return b.all.end(p.process, pid) })
	return pid, err
}

// examineNull refuses a volume at /dev/null that is another device or a fifo. libcontainer opens it before
// it looks what it is, which can have effects.
func examineNull(config *configs.Config) error {
	for _, m := range config.Mounts {
		var st unix.Stat_t
		if path.Clean("/"+m.Destination) != "/dev/null" || !m.IsBind() || unix.Stat(m.Source, &st) != nil {
			continue
		}
		if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(1, 3) {
			return fault.Invalid.Errorf("mount %s: container's /dev/null is invalid", m.Source)
		}
	}
	return nil
}

// knowStarted keeps a process that libcontainer has started from being reaped as an orphan.
func (b *builtins) knowStarted(process *libcontainer.Process) (pid int, err error) {
	if pid, err = process.Pid(); err == nil {
		b.reaper.Know(pid)
	}
	return pid, err
}

// end kills and reaps a process that could not be taken into service.
func (b *builtins) end(process *libcontainer.Process, pid int) error {
	if _, err := process.Pid(); err != nil { // fastinit's
		return b.reaper.End(pid, nil)
	}
	return b.reaper.End(pid, func() { process.Wait() })
}

// execute starts an ordinary container, by executing its program.
func (b *builtins) execute(ctx context.Context, lc *libcontainer.Container, p *Plan, group map[string]string) error {
	if err := lc.Start(p.process); err != nil {
		return err
	}
	pid, err := p.process.Pid()
	if err != nil {
		return err
	}
	if err := limits.JoinAll(group, pid); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return proc.GivenUp(ctx, "start of container "+lc.ID())
	}
	if err := p.complete(pid); err != nil {
		return err
	}
	return releaseInit(filepath.Join(b.root, lc.ID(), "exec.fifo"), pid)
}

func (b *builtin) Exec(ctx context.Context, p *Plan) (_ *Started, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)
	ends, err := connect(p)
	if err != nil {
		return nil, err
	}
	steps.Add("stdio", ends.Close)
	ownNull(p.process, ends)
	pid, quick, err := b.execFast(ctx, p, ends)
	if !quick && err == nil {
		pid, err = b.startExec(ctx, p)
	}
	if stuck := new(proc.StuckError); errors.As(err, &stuck) {
		steps = undo.Stack{}
		stuck.WhenOver(func() { ends.Close() }) // it may still pass them on
		return nil, err
	}
	ends.CloseTheirs()
	if err != nil {
		return nil, err
	}
	end := func() error { return b.all.end(p.process, pid) }
	steps.Add("process", end)
	if err := ends.Receive(); err != nil {
		return nil, err
	}
	return &Started{PID: pid, Stdio: ends, Served: func() {}, End: end}, nil
}

// startExec makes libcontainer start the process of an exec.
func (b *builtin) startExec(ctx context.Context, p *Plan) (pid int, err error) {
	process := p.process
	if err := carry(process); err != nil {
		return 0, err
	}
	lc, err := b.borrow()
	if err != nil {
		return 0, fmt.Errorf("container %s: %w", b.id, err)
	}
	config := lc.Config()
	if err := giveStdio(process, &config); err != nil {
		b.putBack(lc)
		return 0, err
	}
	err = proc.Attempt(ctx, "exec in container "+b.id, p.place.Group, func() error {
		err := lc.Start(process)
		b.putBack(lc)
		if err != nil {
			return shortError(err)
		}
		pid, err = b.all.knowStarted(process)
		return err
	}, func() error { return errors.Join(b.all.end(process, pid), p.place.endRest(pid)) })
	return pid, err
}

func (b *builtin) Subgroups() bool { return true }

func (b *builtin) Facts() (ownPID bool, cgroups map[string]string, err error) {
	if b.fast != nil {
		return b.fast.config.Namespaces.IsPrivate(configs.NEWPID), maps.Clone(b.fast.paths), nil
	}
	lc, err := b.borrow()
	if err != nil {
		return false, nil, err
	}
	defer b.putBack(lc)
	config := lc.Config()
	cgroups, err = cgroupPaths(lc)
	return config.Namespaces.IsPrivate(configs.NEWPID), cgroups, err
}

func (b *builtin) Update(r *specs.LinuxResources, score *int) error {
	if kernel.NoCgroups() { // as with its first limits
		return nil
	}
	lc, err := b.borrow()
	if err != nil {
		return err
	}
	// Set puts SkipDevices into the handle, which then cannot start processes; the state that it
	// saves does not have it.
	defer b.handle.Store(nil)
	config := overlaid(lc.Config(), b.all.delegated(r))
	if score != nil {
		config.OomScoreAdj = score
	}
	if err := lc.Set(config); err != nil {
		return limits.Refusal(err)
	}
	if score != nil {
		b.score.Store(score)
	}
	return nil
}

func (b *builtin) Checkpoint(ctx context.Context, dir string, init *proc.Process) error {
	// Our own handle, because libcontainer locks it while CRIU runs.
	lc, err := libcontainer.Load(b.all.root, b.id)
	if err != nil {
		return fmt.Errorf("load container %s: %w", b.id, err)
	}
	config := lc.Config()
	if slices.ContainsFunc(config.Mounts, func(m *configs.Mount) bool {
		return m.Destination == "/dev" && m.IsBind() && strings.HasPrefix(m.Source, b.all.state)
	}) {
		return fault.WrongState.Errorf("container %s was started by an earlier release, whose /dev CRIU cannot follow", b.id)
	}
	if err := checkDestinations(&config); err != nil {
		return fmt.Errorf("checkpoint container %s: %w", b.id, err)
	}
	stop := endingCRIU(ctx, dir)
	err = lc.Checkpoint(criuOpts(dir))
	stop()
	return b.all.criu.dumped(ctx, b.id, dir, init, err)
}

func (b *builtin) CanCheckpoint(ctx context.Context) error { return b.all.criu.Ready(ctx) }

func (b *builtin) Remove() error {
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
	if err == libcontainer.ErrNotExist || unreadable(err) { // nothing was forked, or it was partly removed before
		return sweepUnsaved(filepath.Join(b.all.root, b.id))
	}
	if err != nil {
		return err
	}
	if b.discard(lc) {
		return nil
	}
	if err := b.all.destroy(b.id, lc); err != nil {
		b.putBack(lc)
		return fault.Unavailable.Errorf("remove container %s: %w", b.id, err)
	}
	return nil
}

// unreadable reports whether err is that of decoding a damaged state.json. The processes of its
// container have ended, by the cgroups that the executor knows.
func unreadable(err error) bool {
	_, syntax := errors.AsType[*json.SyntaxError](err)
	_, kind := errors.AsType[*json.UnmarshalTypeError](err)
	return syntax || kind || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// discard removes an ended container that has only empty cgroups and a directory left, as nearly
// all have. libcontainer would first look for processes, in the freezer and in a procfs mounted for
// that. What discard does not do is left to destroy.
func (b *builtin) discard(lc *libcontainer.Container) (done bool) {
	config := lc.Config()
	if config.Cgroups == nil || config.Cgroups.Systemd || config.Cgroups.Rootless || config.IntelRdt != nil || len(config.Hooks[configs.Poststop]) > 0 {
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

func (b *builtin) sweep() error {
	dir := filepath.Join(b.all.root, b.id)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	lc, err := libcontainer.Load(b.all.root, b.id)
	if err != nil { // the executor died before it was written
		return sweepUnsaved(dir)
	}
	if paths, err := cgroupPaths(lc); err == nil {
		if err := proc.End(proc.InCgroup(paths)); err != nil {
			return err
		}
	}
	// An init that was moved is not in the container's cgroup, and one that is about to exit is in
	// none for a while.
	if state, err := lc.State(); err == nil && state.InitProcessPid > 0 { // else its removal will report what is wrong
		if err := proc.End(proc.Started(state.InitProcessPid, state.InitProcessStartTime)); err != nil {
			return err
		}
	}
	if err := b.all.destroy(b.id, lc); err != nil {
		return fault.Unavailable.Errorf("remove container %s: %w", b.id, err)
	}
	return nil
}

// removeBound bounds the removal of a container: of its cgroup, including hooks.
const removeBound = 2 * time.Minute

// destroy removes the cgroup and the state of a container that has no process.
func (b *builtins) destroy(id string, lc *libcontainer.Container) error {
	ctx, cancel := context.WithTimeout(context.Background(), removeBound)
	defer cancel()
	return proc.Attempt(ctx, "removal of container "+id, nil, func() error {
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

// cgroupPaths returns a container's directories by controller. The key "" is the v2 hierarchy:
// the only one, or on a hybrid host (v1 controllers, and a v2 hierarchy without any) one of
// many.
func cgroupPaths(lc *libcontainer.Container) (map[string]string, error) {
	if kernel.NoCgroups() {
		return map[string]string{}, nil
	}
	st, err := lc.State()
	if err != nil {
		return nil, err
	}
	return maps.Clone(st.CgroupPaths), nil // the cgroup manager changes its own
}

// findBlkioFiles has the cgroups library find the names of blkio's files, which it keeps in global
// variables without a lock, before containers start at the same time. Since Linux 5.0 the names are
// the same in all cgroups. Without paths and limits nothing is written.
func findBlkioFiles() error {
	r := &cgroups.Resources{SkipDevices: true}
	m, err := fs.NewManager(&cgroups.Cgroup{Resources: r}, map[string]string{})
	if err != nil {
		return err
	}
	return m.Set(r)
}

// overlaid returns config with r applied on top of its resources. It must not change device
// rules: libcontainer may not know all rules in force.
func overlaid(config configs.Config, r *specs.LinuxResources) configs.Config {
	group := *config.Cgroups
	now := *group.Resources
	limits.Overlay(&now, r)
	now.SkipDevices = true
	group.Resources = &now
	config.Cgroups = &group
	return config
}
