package executor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/selinux/go-selinux/label"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/executor/limits"
	"github.com/crisp-cri/crisp/oci/executor/poll"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/executor/runtime"
	"github.com/crisp-cri/crisp/oci/executor/stdio"
	"github.com/crisp-cri/crisp/oci/wire"
)

const (
	// startBound bounds the start of a container; it is longer than crispd waits.
	startBound = 5 * time.Minute
	// execBound bounds the start of an exec; a kubelet waits as long for any call.
	execBound = 2 * time.Minute
)

// errKilled means that a container was killed while it was being started, errAbandoned that an
// upgrade came when the start was no longer waited for.
var (
	errKilled    = fault.WrongState.Errorf("it was killed before its program ran")
	errAbandoned = errors.New("it kept the executor from being upgraded, and the daemon that began it has ended")
)

func (x *Executor) run(ctx context.Context, from *wire.Conn, call *wire.Call) (_ *wire.RunReply, files []*os.File, err error) {
	x.warmer.Warm()
	req, err := call.DecodeRun(x.runtimes.Profile)
	if err != nil {
		return nil, nil, err
	}
	spec, err := specOf(req)
	if err != nil {
		return nil, nil, err
	}
	// As containerd's pod has no stdio at all.
	silent := req.Shim != nil && req.Shim.Sandbox == "" && req.LogPath == "" && !req.Stdin && !req.TTY
	return x.create(ctx, from, settings{req.Settings, silent}, spec, req, nil)
}

func specOf(req wire.RunRequest) (*specs.Spec, error) {
	spec := req.Spec
	if spec == nil || spec.Process == nil || spec.Root == nil || spec.Linux == nil {
		return nil, fault.Invalid.Errorf("spec of container %s has no process, root or linux", req.ID)
	}
	spec.Process.Terminal = req.TTY
	return spec, nil
}

// create starts a container, or restores it, and leaves nothing behind if it fails.
func (x *Executor) create(ctx context.Context, from *wire.Conn, s settings, spec *specs.Spec, req wire.RunRequest, restore *runtime.Restore) (_ *wire.RunReply, files []*os.File, err error) {
	x.gate.Begin()
	defer x.gate.End() // not before a failure is rolled back
	var steps undo.Stack
	defer steps.RunIf(&err)

	ctx, cancel := outliving(ctx, startBound)
	defer cancel(nil)
	c, err := x.table.reserve(s, from, cancel)
	if err != nil {
		return nil, nil, err
	}
	steps.Add("reservation", func() error { x.table.release(c); return nil })
	if len(spec.Linux.NetDevices) > 0 {
		select {
		case x.moving <- struct{}{}:
			defer func() { <-x.moving }()
		case <-ctx.Done():
			return nil, nil, proc.GivenUp(ctx, "start of container "+s.ID)
		}
	}
	if spec.Process.OOMScoreAdj == nil {
		spec.Process.OOMScoreAdj = new(int) // else it would inherit ours, and be spared
	}
	x.limits.Clamp(spec.Process)
	p, err := x.runtimes.PlanRun(s.Settings, s.Silent, spec, req, restore)
	if err != nil {
		return nil, nil, err
	}
	defer func() { p.Close(err) }()
	if req.PIDTarget != "" {
		target, err := x.table.runs(req.PIDTarget)
		if err != nil {
			return nil, nil, fmt.Errorf("join a PID namespace: %w", err)
		}
		p.Target = target.proc
	}
	if c.runtime, err = x.runtimes.Create(p); err != nil {
		return nil, nil, err
	}
	c.task, _ = c.runtime.(*runtime.Task)
	steps.Add("container", c.runtime.Remove)
	log, err := stdio.OpenLog(s.Settings, x.log)
	if err != nil {
		return nil, nil, fmt.Errorf("log of container %s: %w", s.ID, err)
	}
	if log != nil {
		steps.Add("log", log.Close)
	}
	init, err := c.runtime.Start(ctx, p)
	if stuck := new(runtime.StuckStartError); errors.As(err, &stuck) {
		steps = undo.Stack{}
		go x.awaitStuck(c, stuck)
		return nil, nil, err
	}
	if err != nil {
		return nil, nil, err
	}
	steps.Add("stdio", init.Stdio.Close)
	steps.Add("process", init.End)
	if err := c.open(init); err != nil {
		return nil, nil, err
	}
	steps.Add("pidfd", func() error { c.proc.Close(); return nil })
	if err := c.learn(); err != nil {
		return nil, nil, err
	}
	if ctx.Err() != nil {
		return nil, nil, proc.GivenUp(ctx, "start of container "+s.ID)
	}
	reply, files, err := x.serve(c, log, init.Stdio)
	if err == nil {
		init.Served()
	}
	return reply, files, err
}

// open determines the process of a started container.
func (c *container) open(init *runtime.Started) (err error) {
	if c.proc = init.Process; c.proc == nil {
		if err = runtime.AwaitExec(init.PID, init.Stdio); err == nil {
			c.proc, err = proc.Open(init.PID)
		}
	}
	c.ref.StartedAt = time.Now()
	return err
}

// serve takes a started container into service, as the last step that can fail.
func (x *Executor) serve(c *container, log *crilog.Writer, ends *stdio.Ends) (*wire.RunReply, []*os.File, error) {
	c.io = stdio.NewStreams(c.settings.Settings, log, ends.Ours[0], ends.Ours[1], ends.Ours[2], ends.PTY)
	c.closesStdin()
	x.countOOM(c)
	files, err := c.descriptors()
	if err != nil {
		return nil, nil, err
	}
	x.setRunning(c)
	reply := c.reply()
	return &reply, files, nil
}

// countOOM begins to count c's OOM kills.
func (x *Executor) countOOM(c *container) {
	var err error
	ref := c.ref
	if c.task != nil {
		ref.Cgroups = c.task.MemoryGroup()
	}
	if c.oom, err = limits.NewOOMCounter(ref); err != nil {
		x.log.Warn("memory events cannot be read", "container", c.ID, "err", err)
	}
}

// learn determines what clients are told about a new process and its container.
func (c *container) learn() (err error) {
	c.ref.Pid = c.proc.PID
	if c.task != nil {
		c.ref.StartTime = c.task.StartTime()
	} else if c.ref.StartTime, err = proc.StartTime(c.ref.Pid); err != nil {
		return err
	}
	c.ownPID, c.ref.Cgroups, err = c.runtime.Facts()
	return err
}

// descriptors returns the descriptors of MethodRun and MethodDescriptors.
func (c *container) descriptors() ([]*os.File, error) {
	files, err := c.io.Duplicates()
	if err != nil {
		return nil, err
	}
	if c.proc.Foreign() {
		return files, nil
	}
	pidfd, err := poll.Dup(c.proc.FD)
	if err != nil {
		wire.CloseAll(files)
		return nil, err
	}
	return slices.Insert(files, 0, pidfd), nil
}

// awaitStuck keeps the place of a container whose start cannot be ended until it ends after all.
func (x *Executor) awaitStuck(c *container, stuck *runtime.StuckStartError) {
	x.table.edit(func() { c.stuck = true })
	x.log.Error("start of a container cannot be ended", "container", c.ID, "err", stuck)
	for over := false; !over; {
		_ = proc.End(proc.Marked(proc.Mark(x.root, c.ID))) // a hook may have lost a child while it was killed
		select {
		case <-stuck.Over:
			over = true
		case <-time.After(proc.Patience):
		}
	}
	x.gate.Begin()
	defer x.gate.End()
	if err := fault.Protect(stuck.Release); err != nil {
		x.log.Warn("container was not removed", "container", c.ID, "err", err)
	}
	x.table.release(c)
}

// outliving returns a context that ends with ctx and after bound, but not with the connection of
// its caller.
func outliving(ctx context.Context, bound time.Duration) (context.Context, context.CancelCauseFunc) {
	timed, stop := context.WithTimeout(context.WithoutCancel(ctx), bound)
	out, cancel := context.WithCancelCause(timed)
	forget := context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); !errors.Is(cause, wire.ErrGone) {
			cancel(cause)
		}
	})
	return out, func(cause error) {
		cancel(cause)
		if cause == nil {
			forget()
			stop()
		}
	}
}

// podInit serves wire.PodInitRequest. The pod's init is a container like any other, with as
// little as possible in it: no capabilities, no privileged user, no file except itself. The
// containers of the pod can see its root through /proc/1/root.
func (x *Executor) podInit(ctx context.Context, from *wire.Conn, req wire.PodInitRequest) (*wire.RunReply, []*os.File, error) {
	x.warmer.Warm()
	root := filepath.Join(x.opts.State, "podinit")
	if err := podRoot(root, req.Path, req.FileLabel); err != nil {
		return nil, nil, fmt.Errorf("root of a pod's init: %w", err)
	}
	user := cmp.Or(req.User, nobody)
	score := -998 // the last of the pod to be OOM-killed
	spec := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: root, Readonly: true},
		Process: &specs.Process{
			Args:            []string{"/init"},
			Cwd:             "/",
			User:            specs.User{UID: user, GID: user},
			Capabilities:    &specs.LinuxCapabilities{},
			NoNewPrivileges: true,
			SelinuxLabel:    req.Label,
			OOMScoreAdj:     &score,
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			// A bind mount of /dev keeps libcontainer from creating devices.
			{Destination: "/dev", Type: "bind", Source: filepath.Join(root, "dev"), Options: []string{"bind", "ro", "nosuid", "noexec", "nodev"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: req.Cgroup,
			Namespaces:  []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}},
		},
	}
	if req.MountLabel != "" {
		// A search for the pod's mount label in /proc/1/mountinfo, as in critest, finds it here:
		// a bind mount cannot have one.
		spec.Linux.MountLabel = req.MountLabel
		spec.Mounts = append(spec.Mounts, specs.Mount{
			Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "nodev", "ro", "mode=555", "size=4k"},
		})
	}
	kinds := map[string]specs.LinuxNamespaceType{
		"net": specs.NetworkNamespace, "uts": specs.UTSNamespace, "ipc": specs.IPCNamespace, "user": specs.UserNamespace,
	}
	for kind, path := range req.Namespaces {
		t, ok := kinds[kind]
		if !ok {
			return nil, nil, fault.Invalid.Errorf("pod init cannot join a %q namespace", kind)
		}
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: t, Path: path})
	}
	return x.create(ctx, from, settings{wire.Settings{ID: req.ID, ExitPath: req.ExitPath}, true}, spec, wire.RunRequest{SystemdCgroup: req.SystemdCgroup, Fast: req.Fast}, nil)
}

const nobody = 65534

// podRoot creates root, the root directory of every pod's init, with a copy of the program at
// path in it, and replaces the copy if the program has changed. Both get the SELinux label
// fileLabel, unless it is "".
func podRoot(root, path, fileLabel string) error {
	want, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	init := filepath.Join(root, "init")
	if have, err := os.ReadFile(init); err != nil || !bytes.Equal(have, want) {
		for _, dir := range []string{root, filepath.Join(root, "proc"), filepath.Join(root, "dev")} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		if err := label.SetFileLabel(root, fileLabel); err != nil {
			return err
		}
		// Replaced and not overwritten, because the old one may be running.
		if err := atomicfile.WriteVolatile(init, want, 0o755); err != nil {
			return err
		}
	}
	return label.SetFileLabel(init, fileLabel) // whoever uses it sets it, also after another has written it
}

// adopt serves wire.AdoptRequest. It also adopts a process that no longer exists, so that its
// exit is reported.
func (x *Executor) adopt(req wire.AdoptRequest, call *wire.Call) (err error) {
	x.gate.Begin()
	defer x.gate.End() // not before a failure is rolled back
	var steps undo.Stack
	defer steps.RunIf(&err)

	s := settings{Settings: req.Settings}
	c, err := x.table.reserve(s, nil, nil)
	if err != nil {
		return err
	}
	steps.Add("reservation", func() error { x.table.release(c); return nil })
	c.ref = req.RunReply
	c.runtime = x.runtimes.Of(req.ID)
	c.task, _ = c.runtime.(*runtime.Task)
	ownPID, paths, err := c.runtime.Facts()
	if c.ownPID = ownPID; err == nil {
		c.ref.Cgroups = paths
	}
	if c.task != nil {
		c.proc = c.task.Adopt(req.Pid)
	} else if c.proc, err = proc.Adopt(req.Pid, req.StartTime, call.File(wire.FDPid)); err != nil {
		c.exit = &wire.Exit{ID: c.ID, Code: 255, At: time.Now(), Reason: wire.ReasonUnknown, Message: err.Error()}
	}
	x.buffers.Complete(req.Settings)
	log, err := stdio.OpenLog(req.Settings, x.log)
	if err != nil {
		// The container runs, even if its output is lost.
		x.log.Warn("container output is being lost", "container", c.ID, "err", err)
	}
	var ends [4]*os.File
	for i, name := range []string{wire.FDStdin, wire.FDStdout, wire.FDStderr, wire.FDPTY} {
		if ends[i], err = poll.Received(call.File(name)); err != nil {
			wire.CloseAll(ends[:])
			c.proc.Close()
			if log != nil {
				log.Close()
			}
			return err
		}
	}
	if c.task != nil {
		ends = x.reopen(c, ends)
	}
	if ends[1] == nil && ends[2] == nil && ends[3] == nil && req.LogPath != "" {
		x.log.Warn("container was adopted without its stdio: its output is lost, and it may end when it writes", "container", c.ID)
	}
	c.io = stdio.NewStreams(req.Settings, log, ends[0], ends[1], ends[2], ends[3])
	c.closesStdin()
	if x.countOOM(c); c.oom != nil {
		c.oom.Resume(req.OOMKills)
	}
	if c.task != nil {
		c.task.EndForeign() // before it can have execs of ours
	} else if err := x.execs.endForeign(c, x.root); err != nil {
		x.log.Warn("execs of the previous executor could not be ended", "container", c.ID, "err", err)
	}
	x.setRunning(c)
	return nil
}
