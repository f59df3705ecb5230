package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/internal/userns"
	"github.com/crisp-cri/crisp/oci/wire"
)

// startTimeout bounds a start whose caller has given up: a root file system that does not
// respond must not keep a container Starting for ever.
const startTimeout = 4 * time.Minute

// reasonStartError is the reason, and 128 the exit code, of a container whose program was never
// executed.
const reasonStartError = "StartError"

// Start runs the container's program and returns once it has been executed. If it cannot be, the
// container is Exited with code 128, reason StartError and the error's text as its message, and
// Start returns the error.
//
// A Start abandoned by ctx continues; its outcome is in the status.
func (c *Container) Start(ctx context.Context) error {
	if err := c.mayStart(); err != nil {
		return err
	}
	c.orphan.Store(false)
	if err := c.move(start, nil); err != nil {
		return err
	}
	result := make(chan error, 1)
	c.rt.work.Go(func() { result <- c.run(context.WithoutCancel(ctx)) })
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// mayStart refuses a container whose sandbox is being stopped.
func (c *Container) mayStart() error {
	if c.sandbox == nil {
		return fault.WrongState.Errorf("container %s has no sandbox: cannot start it", c.id)
	}
	if st := c.sandbox.State(); st != SandboxReady {
		return fault.WrongState.Errorf("sandbox %s is %s: cannot start container %s", c.sandbox.id, st, c.id)
	}
	return nil
}

// run does the work of Start. If we are closed before the executor has answered, the next Open
// settles the start.
func (c *Container) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	// Check again now that we are Starting: a sandbox that began to stop earlier has not seen us
	// in its walk; one that does so later will.
	err := c.mayStart()
	var reply wire.RunReply
	if err == nil {
		err = fault.Protect(func() (err error) {
			reply, err = c.launch(ctx)
			return err
		})
	}
	if errors.Is(err, errUnsettled) {
		return err
	}
	defer close(c.settled)
	if err != nil {
		if !c.sandbox.pinned() { // "ip -all netns delete" does that; containers that run keep theirs
			c.sandbox.broken("namespaces of sandbox were removed")
		}
		return errors.Join(err, c.failed(ctx, err))
	}
	return c.ran(reply)
}

// errUnsettled: the Runtime was closed and the container is still Starting.
var errUnsettled = fault.Unavailable.Errorf("closed during a start")

// launch makes the executor run the container. If the answer is lost with the executor, launch
// asks its successor for the outcome, and to run the container if nothing has happened.
func (c *Container) launch(ctx context.Context) (reply wire.RunReply, err error) {
	run, err := c.runRequest()
	if err != nil {
		return reply, err
	}
	method, req := wire.MethodRun, any(run)
	if dir := c.record.Load().Config.Restore; dir != "" {
		method, req = wire.MethodRestore, wire.RestoreRequest{RunRequest: run, Dir: dir}
	}
	for range 2 {
		var files []*os.File
		if files, err = c.rt.link.call(ctx, method, req, &reply); err == nil {
			c.keep(files)
			return reply, nil
		}
		if !errors.Is(err, fault.Unavailable) && ctx.Err() == nil {
			return reply, err
		}
		info, oerr := c.outcome(c.rt.closing)
		switch {
		case oerr != nil:
			return reply, errors.Join(oerr, err)
		case info == nil && ctx.Err() == nil:
			continue
		case info == nil:
			return reply, err
		case info.Exit != nil:
			c.rt.work.Go(func() { c.exit(c.rt.closing, *info.Exit) })
		default:
			if conn, err := c.rt.link.get(c.rt.closing); err == nil {
				c.fetch(c.rt.closing, conn)
			}
		}
		return info.RunReply, nil
	}
	return reply, err
}

// outcome determines the result of a start whose answer never came; nil = nothing happened, and
// nothing will. The executor lists a container once its program runs, and deletes none that is
// still being started, however long that takes; before it lists, it waits for calls of a dead
// daemon that it has yet to read (wire.Conn.Settle), but not for the end of a slow start.
// Without either a container could run twice. The only error is errUnsettled.
func (c *Container) outcome(ctx context.Context) (*wire.Info, error) {
	for pause := backoff.New(time.Millisecond, time.Second); ; {
		infos, err := c.rt.link.list(ctx)
		if i := slices.IndexFunc(infos, func(info wire.Info) bool { return info.ID == c.id }); err == nil && i >= 0 {
			return &infos[i], nil
		}
		if err == nil {
			err = c.rt.link.again(ctx, wire.MethodDelete, wire.Ref{ID: c.id}, nil)
		}
		if ctx.Err() != nil {
			return nil, errUnsettled
		}
		if err == nil {
			// It may have run and ended between the two calls.
			if exit, ended := c.readExit(); ended {
				return &wire.Info{ID: c.id, RunReply: wire.RunReply{StartedAt: exit.At}, Exit: &exit}, nil
			}
			return nil, nil
		}
		c.rt.log.Info("start could not be settled yet", "container", c.id, "err", err)
		if pause.Wait(ctx) != nil {
			return nil, errUnsettled
		}
	}
}

// ran records that the program runs. A Stop that came first has won: the container then stays
// Stopping, and the stopper continues from here.
func (c *Container) ran(reply wire.RunReply) error {
	err := c.move(started, func(st *containerStatus) {
		st.Pid, st.StartTime = reply.Pid, reply.StartTime
		st.StartedAt, st.Cgroups = reply.StartedAt, reply.Cgroups
	})
	if err != nil {
		return err
	}
	if dir := c.record.Load().Config.Restore; dir != "" {
		c.rt.work.Go(func() {
			if err := os.RemoveAll(dir); err != nil { // it is as large as the processes were
				c.rt.log.Warn("restored checkpoint was not removed", "container", c.id, "err", err)
			}
		})
	}
	c.emit(ContainerStarted)
	return nil
}

// failed records that the program was never executed. It is on disk like any other exit: the
// kubelet counts it as a restart, and shows the message.
func (c *Container) failed(ctx context.Context, why error) error {
	ctx, cancel := undo.Context(ctx)
	defer cancel()
	err := c.rt.expunge(ctx, c.id) // in case the executor disagrees
	return errors.Join(err, c.end(wire.Exit{
		ID: c.id, Code: 128, At: time.Now(), Reason: reasonStartError, Message: why.Error(),
	}, true))
}

func (c *Container) runRequest() (wire.RunRequest, error) {
	cfg := c.record.Load().Config
	spec, err := c.joinTarget(cfg)
	if err != nil {
		return wire.RunRequest{}, err
	}
	if ids := c.sandbox.Config().IDs; ids != nil && cfg.Engine == "" {
		spec = withMappings(spec, ids)
	}
	return wire.RunRequest{
		Settings: c.settings(), Spec: spec, Env: cfg.Env,
		SystemdCgroup: c.rt.o.SystemdCgroup, Engine: cfg.Engine, Shim: cfg.Shim, Fast: c.rt.o.FastInit,
		PrepareDir: filepath.Join(c.sandbox.RunDir(), preparedDir, c.id), PIDTarget: cfg.PIDTarget,
	}, nil
}

// withMappings returns the spec with the mappings of the user namespace that it joins, so that the
// executor need not read them. OCI runtimes read them themselves, and runc warns of both.
func withMappings(spec *specs.Spec, ids *userns.Map) *specs.Spec {
	own, linux := *spec, *spec.Linux
	own.Linux = &linux
	linux.UIDMappings = ids.UID.Mappings()
	linux.GIDMappings = ids.GID.Mappings()
	return &own
}

func (c *Container) settings() wire.Settings {
	cfg := c.record.Load().Config
	return wire.Settings{
		ID: c.id, Stdin: cfg.Stdin, StdinOnce: cfg.StdinOnce, TTY: cfg.TTY,
		LogPath: cfg.LogPath, LogMaxLine: c.rt.o.LogMaxLine, LogLimit: cfg.LogLimit, ExitPath: c.exitPath(),
	}
}

// joinTarget returns the spec with the PID namespace of PIDTarget in it. The target must be of
// the same sandbox and running now, whatever it was at Create.
func (c *Container) joinTarget(cfg ContainerConfig) (*specs.Spec, error) {
	if cfg.PIDTarget == "" {
		return cfg.Spec, nil
	}
	target, err := c.rt.containers.get(cfg.PIDTarget)
	if err != nil {
		return nil, fmt.Errorf("target of container %s: %w", c.id, err)
	}
	if target.SandboxID() != cfg.SandboxID {
		return nil, fault.Invalid.Errorf("target %s of container %s is in another sandbox", target.id, c.id)
	}
	st := target.status.Load()
	found := c.rt.find(st.Pid, st.StartTime)
	defer wire.CloseAll(found)
	if st.State != Running || len(found) == 0 {
		return nil, fault.WrongState.Errorf("target %s of container %s is not running", target.id, c.id)
	}
	spec := *cfg.Spec
	linux := specs.Linux{}
	if spec.Linux != nil {
		linux = *spec.Linux
	}
	linux.Namespaces = slices.DeleteFunc(slices.Clone(linux.Namespaces), func(ns specs.LinuxNamespace) bool {
		return ns.Type == specs.PIDNamespace
	})
	linux.Namespaces = append(linux.Namespaces, specs.LinuxNamespace{
		Type: specs.PIDNamespace, Path: fmt.Sprintf("/proc/%d/ns/pid", st.Pid),
	})
	spec.Linux = &linux
	return &spec, nil
}
