package runtime

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/internal/userns"
	"github.com/crisp-cri/crisp/oci/executor/fastinit"
	"github.com/crisp-cri/crisp/oci/executor/limits"
	"github.com/crisp-cri/crisp/oci/executor/poll"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/executor/stdio"
)

// fastLabel, in a container's configuration, says that fastinit started it.
const fastLabel = "crisp.init=fast"

// A fastState is the executor's knowledge of a container that fastinit started; libcontainer has it
// only after it has read the state.
type fastState struct {
	config  *configs.Config
	manager cgroups.Manager
	paths   map[string]string // cgroups by controller
}

// fastPlan plans a container for fastinit. The error is fastinit.ErrUnsupported if libcontainer
// has to start it.
func (b *builtin) fastPlan(p *Plan, group map[string]string) (*fastinit.Plan, *preparedMounts, error) {
	all := b.all
	if all.fast == nil || !p.fast {
		return nil, &preparedMounts{}, fastinit.ErrUnsupported
	}
	q, err := all.fastProcess(p.config, p.process)
	if err != nil {
		return nil, &preparedMounts{}, err
	}
	s := fastinit.Setting{ID: b.id, CgroupV2: cgroups.IsCgroup2UnifiedMode(), NoNodes: all.host.NoNodes}
	trees := &preparedMounts{}
	i := slices.IndexFunc(p.config.Mounts, isCgroupV1)
	if i >= 0 && p.req.PrepareDir != "" && all.covers(group) && !p.req.SystemdCgroup {
		s.Cgroups = filepath.Join(p.req.PrepareDir, "cgroup")
		trees.make = func() error {
			trees.dir = p.req.PrepareDir
			return all.prepareCgroups(s.Cgroups, p.config, p.config.Mounts[i], group)
		}
		// The fork does not return before a child that forks again has done so.
		s.Later = !slices.ContainsFunc(p.config.Namespaces, func(ns configs.Namespace) bool {
			return ns.Type == configs.NEWUSER || ns.Type == configs.NEWPID && ns.Path != ""
		})
		if !s.Later {
			if err := trees.make(); err != nil {
				return nil, &preparedMounts{}, errors.Join(err, trees.detach())
			}
		}
	}
	plan, err := fastinit.Container(p.config, q, s)
	if err != nil {
		return nil, &preparedMounts{}, errors.Join(err, trees.detach())
	}
	return plan, trees, nil
}

// tryFast starts the container's init with fastinit. The error is fastinit.ErrUnsupported if
// libcontainer has to; nothing is left behind then.
func (b *builtin) tryFast(ctx context.Context, p *Plan, ends *stdio.Ends, group map[string]string) (pid int, trees *preparedMounts, err error) {
	plan, trees, err := b.fastPlan(p, group)
	if err == nil {
		err = giveStdio(p.process, p.config)
	}
	if err == nil {
		err = proc.Attempt(ctx, "start of container "+b.id, group, func() (err error) {
			pid, err = b.startFast(ctx, p, plan, trees, ends, group)
			return err
		}, func() error { return b.all.end(p.process, pid) })
	}
	if err != nil && (errors.Is(err, fastinit.ErrUnsupported) || b.all.retries(ctx, b.id, err)) {
		ends.Refuse()
		return 0, &preparedMounts{}, errors.Join(fastinit.ErrUnsupported, trees.detach())
	}
	return pid, trees, err
}

// fastProcess converts a process, with the container's configuration for what the process does
// not say itself. fastinit.ErrUnsupported: libcontainer has to start it.
func (b *builtins) fastProcess(config *configs.Config, p *libcontainer.Process) (fastinit.Process, error) {
	q := fastinit.Process{
		Args: p.Args, Env: p.Env, Cwd: p.Cwd, UID: p.UID, GID: p.GID, Groups: p.AdditionalGroups,
		Capabilities: config.Capabilities, NoNewPrivileges: config.NoNewPrivileges, AppArmor: config.AppArmorProfile, Label: cmp.Or(p.Label, config.ProcessLabel),
		Terminal: p.ConsoleSocket != nil, Width: p.ConsoleWidth, Height: p.ConsoleHeight,
		KeepsGroups: userns.KeepsGroups(),
	}
	if p.Scheduler != nil || p.IOPriority != nil || p.CPUAffinity != nil {
		return q, fastinit.ErrUnsupported
	}
	if p.Capabilities != nil {
		q.Capabilities = p.Capabilities
	}
	if p.NoNewPrivileges != nil {
		q.NoNewPrivileges = *p.NoNewPrivileges
	}
	if p.AppArmorProfile != "" {
		q.AppArmor = p.AppArmorProfile
	}
	if !fastinit.SeccompSupported(config.Seccomp) {
		return q, fastinit.ErrUnsupported
	}
	var err error
	q.Seccomp, err = b.filterOf(config.Seccomp)
	return q, err
}

// startFast starts a container's init with fastinit, as attempt's function.
func (b *builtin) startFast(ctx context.Context, p *Plan, plan *fastinit.Plan, trees *preparedMounts, ends *stdio.Ends, group map[string]string) (pid int, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)
	m, err := managerOf(p.config.Cgroups, maps.Clone(group)) // it changes them
	if err != nil {
		return 0, err
	}
	tree, own := b.makeCgroups(m, p, plan, trees, group)
	steps.Add("cgroup", func() error { <-own; return m.Destroy() })
	// The last step is undone first: then nothing can be in the cgroup.
	child, err := b.all.startChild(ctx, plan, fastinit.Options{Stdio: ends.OfChild()}, &steps)
	if err != nil {
		return 0, err
	}
	if err := b.setScore(child.Pid, p, p.config); err != nil {
		return 0, err
	}
	if plan.NeedsCgroups {
		if err := <-tree; err != nil {
			return 0, err
		}
		if err := errors.Join(child.Await(), child.Proceed()); err != nil {
			return 0, err
		}
	}
	if err := b.enterCgroups(child, m, p, plan, group, own); err != nil {
		return 0, err
	}
	if plan.JoinsEarly {
		if err := errors.Join(child.Proceed(), b.saveState(child.Pid, p.config, group), child.Await()); err != nil {
			return 0, oomKilled(m, err)
		}
	}
	if err := adjust(child.Pid, p.config, p.process); err != nil {
		return 0, err
	}
	if err := letExecute(ctx, child, "start of container "+b.id, p); err != nil {
		return 0, oomKilled(m, err)
	}
	b.fast = &fastState{p.config, m, group}
	return child.Pid, nil
}

// makeCgroups makes a container's cgroups while its child is forked, and begins: at first what the plan
// needs, then all, with their limits. It reports both.
func (b *builtin) makeCgroups(m cgroups.Manager, p *Plan, plan *fastinit.Plan, trees *preparedMounts, group map[string]string) (tree, own chan error) {
	tree, own = make(chan error, 1), make(chan error, 1)
	go func() {
		defer close(own)
		if plan.NeedsCgroups {
			tree <- fault.Protect(trees.make)
		}
		if !p.config.Cgroups.Systemd {
			own <- fault.Protect(func() error { return b.applyCgroups(m, p, -1, group) })
		}
	}()
	return tree, own
}

// applyCgroups makes a container's cgroups, with their limits, and moves first into them, unless it is -1.
func (b *builtin) applyCgroups(m cgroups.Manager, p *Plan, first int, group map[string]string) error {
	if err := m.Apply(first); err != nil {
		return fmt.Errorf("unable to apply cgroup configuration: %w", err)
	}
	if err := b.all.setCgroup(m, p.config.Cgroups, group); err != nil {
		return fmt.Errorf("error setting cgroup config: %w", err)
	}
	return nil
}

// enterCgroups moves the child into its cgroups when they are made and it waits. If it waits for nothing
// else, its state is saved before. The child makes its devices before that: on cgroup v1 all are forbidden for a
// moment while the rules are set. Only systemd requires the process first.
func (b *builtin) enterCgroups(child *fastinit.Child, m cgroups.Manager, p *Plan, plan *fastinit.Plan, group map[string]string, made <-chan error) error {
	if !plan.JoinsEarly { // usually it is still making its mounts
		if err := b.saveState(child.Pid, p.config, group); err != nil {
			return err
		}
	}
	if err := errors.Join(<-made, child.Await()); err != nil {
		return err
	}
	if p.config.Cgroups.Systemd {
		if err := b.applyCgroups(m, p, child.Pid, group); err != nil {
			return err
		}
	} else if err := m.AddPid("", child.Pid); err != nil {
		return fmt.Errorf("error adding pid %d to cgroups: %w", child.Pid, err)
	}
	return limits.JoinAll(group, child.Pid)
}

// startChild forks a child, which only its caller will reap. The fork may have waited until ctx
// ended: then the child is no longer waited for.
func (b *builtins) startChild(ctx context.Context, plan *fastinit.Plan, o fastinit.Options, steps *undo.Stack) (*fastinit.Child, error) {
	done := b.reaper.ExpectChild()
	defer done()
	child, err := b.fast.Start(plan, o)
	if err != nil {
		return nil, err
	}
	if !b.reaper.Know(child.Pid) {
		child.Close()
		return nil, fault.Internal.Errorf("init named process %d, which is another container's", child.Pid)
	}
	steps.Add("connection", func() error { child.Close(); return nil })
	steps.Add("process", func() error { return b.reaper.End(child.Pid, nil) })
	if ctx.Err() != nil {
		return nil, proc.GivenUp(ctx, "fork") // it waits yet
	}
	return child, nil
}

// oomKilled returns err, or a better explanation: a process of the container was killed by the
// OOM killer.
func oomKilled(m cgroups.Manager, err error) error {
	if n, oerr := m.OOMKillCount(); oerr == nil && n > 0 && !errors.As(err, new(fastinit.ProgramError)) {
		return errors.New("container init was OOM-killed (memory limit too low?)")
	}
	return err
}

// letExecute lets a child that is set up execute its program, unless its start was given up or
// cannot be completed.
func letExecute(ctx context.Context, child *fastinit.Child, what string, p *Plan) error {
	if ctx.Err() != nil {
		return proc.GivenUp(ctx, what)
	}
	if err := p.complete(child.Pid); err != nil {
		return err
	}
	if err := child.Proceed(); err != nil {
		return err
	}
	return child.Executed()
}

// setScore sets a child's oom_score_adj before it enters the container's cgroup, where the
// executor's score would protect it from the OOM killer.
func (b *builtin) setScore(pid int, p *Plan, config *configs.Config) error {
	for _, score := range []*int{p.spec.Process.OOMScoreAdj, b.score.Load(), config.OomScoreAdj} {
		if score != nil {
			return limits.WriteScore(pid, strconv.Itoa(*score))
		}
	}
	return nil
}

// adjust sets limits that a child may not set itself, or no longer.
func adjust(pid int, config *configs.Config, p *libcontainer.Process) error {
	limits := config.Rlimits
	if len(p.Rlimits) > 0 {
		limits = p.Rlimits
	}
	for _, l := range limits {
		if err := unix.Prlimit(pid, l.Type, &unix.Rlimit{Cur: l.Soft, Max: l.Hard}, nil); err != nil {
			return fmt.Errorf("error setting rlimit type %v: %w", l.Type, err)
		}
	}
	resetAffinity(pid)
	return nil
}

// everyCPU is the set of all CPUs that Linux can have; unix.CPUSet has only 1024.
var everyCPU = bytes.Repeat([]byte{0xff}, 64<<10/8)

// resetAffinity lets a process run on all CPUs that its cgroup allows, not only on those of our
// own parent. As with libcontainer, it is no error if that fails.
func resetAffinity(pid int) {
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_SETAFFINITY, uintptr(pid), uintptr(len(everyCPU)), uintptr(unsafe.Pointer(&everyCPU[0])))
}

// saveState writes what libcontainer saves about a container that it has started.
func (b *builtin) saveState(pid int, config *configs.Config, group map[string]string) error {
	started, err := proc.StartTime(pid)
	if err != nil {
		return err
	}
	labelled := *config // libcontainer may have to start it after all, and has the same configuration
	labelled.Labels = append(slices.Clip(config.Labels), fastLabel)
	s := libcontainer.State{
		BaseState: libcontainer.BaseState{
			ID: b.id, Config: labelled, InitProcessPid: pid, InitProcessStartTime: started, Created: time.Now().UTC(),
		},
		CgroupPaths:    group,
		NamespacePaths: make(map[configs.NamespaceType]string),
	}
	for _, kind := range configs.NamespaceTypes() {
		if configs.IsNamespaceSupported(kind) {
			s.NamespacePaths[kind] = (&configs.Namespace{Type: kind}).GetPath(pid)
		}
	}
	for _, ns := range config.Namespaces {
		s.NamespacePaths[ns.Type] = ns.GetPath(pid)
	}
	for fd := range 3 {
		target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd))
		s.ExternalDescriptors = append(s.ExternalDescriptors, target)
	}
	data, err := b.all.encode(s)
	if err != nil {
		return err
	}
	return atomicfile.WriteVolatile(filepath.Join(b.all.root, b.id, "state.json"), data, 0o600)
}

// removeFast removes a container that fastinit started and that has no poststop hooks.
func (b *builtin) removeFast() error {
	ctx, cancel := context.WithTimeout(context.Background(), removeBound)
	defer cancel()
	return proc.Attempt(ctx, "removal of container "+b.id, nil, func() error {
		if err := b.fast.manager.Destroy(); err != nil {
			return fault.Unavailable.Errorf("remove container %s: %w", b.id, err)
		}
		return os.RemoveAll(filepath.Join(b.all.root, b.id))
	}, nil)
}

// execFast starts an exec with fastinit; ok is false if libcontainer has to.
func (b *builtin) execFast(ctx context.Context, p *Plan, ends *stdio.Ends) (pid int, ok bool, err error) {
	if b.all.fast == nil || !p.fast {
		return 0, false, nil
	}
	config, err := b.configuration()
	if err != nil {
		return 0, false, err
	}
	q, err := b.all.fastProcess(config, p.process)
	var plan *fastinit.Plan
	if err == nil {
		plan, err = fastinit.Exec(config, q, b.id)
	}
	if errors.Is(err, fastinit.ErrUnsupported) {
		return 0, false, nil
	}
	if err == nil {
		err = giveStdio(p.process, config)
	}
	if err != nil {
		return 0, true, err
	}
	err = proc.Attempt(ctx, "exec in container "+b.id, p.place.Group, func() (err error) {
		pid, err = b.startExecFast(ctx, p, plan, config, ends)
		return err
	}, func() error { return errors.Join(b.all.end(p.process, pid), p.place.endRest(pid)) })
	if b.all.retries(ctx, b.id, err) {
		ends.Refuse()
		return 0, false, nil
	}
	return pid, true, err
}

// retries reports whether libcontainer should retry what the fast init failed at: libcontainer
// decides what is possible, and how a failure is worded. It would fail at a program or a working
// directory in the same way, and must not start a program that may have run.
func (b *builtins) retries(ctx context.Context, id string, err error) bool {
	if err == nil || ctx.Err() != nil || errors.As(err, new(*proc.StuckError)) || errors.As(err, new(fastinit.ProgramError)) {
		return false
	}
	b.log.Info("the fast init failed, libcontainer tries", "container", id, "err", err)
	return true
}

// configuration returns the container's configuration, which must not be changed.
func (b *builtin) configuration() (*configs.Config, error) {
	if b.fast != nil {
		return b.fast.config, nil
	}
	lc, err := b.borrow()
	if err != nil {
		return nil, fmt.Errorf("container %s: %w", b.id, err)
	}
	defer b.putBack(lc)
	config := lc.Config()
	return &config, nil
}

// startExecFast is execFast's attempt.
func (b *builtin) startExecFast(ctx context.Context, p *Plan, plan *fastinit.Plan, config *configs.Config, ends *stdio.Ends) (_ int, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)
	// A duplicate: the container may end meanwhile, and its descriptor be reused.
	init, err := poll.Dup(p.place.Init.FD)
	if err != nil {
		return 0, fmt.Errorf("container %s: %w", b.id, err)
	}
	defer init.Close()
	var child *fastinit.Child
	steps.Add("session", func() error { // after the process: it may have forked
		if child == nil {
			return nil
		}
		return p.place.endRest(child.Pid)
	})
	child, err = b.all.startChild(ctx, plan, fastinit.Options{Stdio: ends.OfChild(), Init: init}, &steps)
	if err != nil {
		return 0, err
	}
	if err := b.setScore(child.Pid, p, config); err != nil {
		return 0, err
	}
	if err := p.place.join(child.Pid); err != nil {
		return 0, err
	}
	if err := child.Await(); err != nil {
		return 0, err
	}
	if err := adjust(child.Pid, config, p.process); err != nil {
		return 0, err
	}
	return child.Pid, letExecute(ctx, child, "exec in container "+b.id, p)
}
