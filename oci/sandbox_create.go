package oci

import (
	"context"
	"errors"
	"fmt"

	"github.com/crisp-cri/crisp/internal/fault"
	hostkernel "github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/wire"
)

// CreateSandbox creates a sandbox: its record first, then its namespaces with hostname and
// sysctls, its shm, its cgroup and, with SharedPID, its init. It stays Creating until Ready is
// called: it can be found by ID and name, but is not listed.
//
// If a step fails everything is undone. If the undo fails too, a NotReady sandbox stays, which
// can be stopped and removed again.
func (r *Runtime) CreateSandbox(ctx context.Context, cfg SandboxConfig) (_ *Sandbox, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)

	if err := r.checkSandbox(cfg); err != nil {
		return nil, err
	}
	if cfg.ID == "" {
		cfg.ID = NewID()
	}
	release, err := r.sandboxes.reserve(cfg.Name, cfg.ID)
	if err != nil {
		return nil, err
	}
	steps.Add("name reservation", func() error {
		if !r.sandboxes.has(cfg.ID) { // else it could not be undone and keeps its name
			release()
		}
		return nil
	})
	r.Warm()
	rec := &sandboxRecord{CreatedAt: r.now(r.sandboxes.newest(cfg.Name)), Config: cfg}
	sb := r.newSandbox(cfg.ID, rec)
	steps.Add("sandbox", func() error { return sb.rollBack(ctx) })
	// The sandbox is visible only from Ready on.
	if err := r.o.Records.Keep(sandboxKind, sb.id, rec); err != nil {
		return nil, fmt.Errorf("save sandbox %s: %w", sb.id, err)
	}
	r.sandboxes.add(sb)
	if err := sb.make(ctx, cfg); err != nil {
		return nil, err
	}
	if st := sb.State(); st != SandboxCreating {
		return nil, fault.WrongState.Errorf("sandbox %s is %s: it was stopped while it was created", sb.id, st)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return sb, nil
}

// checkSandbox refuses a sandbox that no kernel could create.
func (r *Runtime) checkSandbox(cfg SandboxConfig) error {
	if len(cfg.Hostname) > 64 { // HOST_NAME_MAX, sethostname(2)
		return fault.Invalid.Errorf("hostname %q is longer than 64 bytes", cfg.Hostname)
	}
	if cfg.HostPID && cfg.SharedPID {
		return fault.Invalid.Errorf("PID namespace cannot be both the host's and the sandbox's")
	}
	if hostkernel.Bare() && cfg.HostPID {
		return fault.Invalid.Errorf("sandbox has the host's PID namespace: crispd is in a user namespace, which cannot mount that's procfs")
	}
	if cfg.Shim != nil && (cfg.SharedPID || cfg.IDs != nil) {
		return fault.Invalid.Errorf("sandbox of %s can have neither our PID namespace nor our user namespace", cfg.Shim.Path)
	}
	if err := checkIDs(cfg); err != nil {
		return err
	}
	if err := checkSysctls(cfg); err != nil {
		return err
	}
	return checkCgroup(cfg.CgroupParent, r.o.SystemdCgroup)
}

// make does the kernel's part of CreateSandbox.
func (sb *Sandbox) make(ctx context.Context, cfg SandboxConfig) error {
	if err := makePrivate(sb.runDir); err != nil {
		return fmt.Errorf("make directory of sandbox %s: %w", sb.id, err)
	}
	if err := sb.rt.host.Pin(sb.pins()); err != nil {
		return fmt.Errorf("sandbox %s: %w", sb.id, err)
	}
	if cfg.CgroupParent == "" {
		if err := sb.rt.host.Cgroup(sb.CgroupParent(), true); err != nil {
			return fmt.Errorf("sandbox %s: %w", sb.id, err)
		}
	}
	if cfg.SharedPID {
		return sb.startInit(ctx)
	}
	return nil
}

// startInit creates the sandbox's PID namespace by starting its first process.
func (sb *Sandbox) startInit(ctx context.Context) error {
	namespaces, cfg := make(map[string]string), sb.Config()
	for _, kind := range []string{"user", "net", "uts", "ipc"} {
		if path := sb.NamespacePath(kind); path != "" {
			namespaces[kind] = path
		}
	}
	req := wire.PodInitRequest{
		ID: sb.id, Path: sb.rt.o.PodInit, Namespaces: namespaces, User: sb.nobody(), Label: cfg.Label, FileLabel: cfg.FileLabel, MountLabel: cfg.MountLabel,
		Cgroup: initCgroup(sb.CgroupParent(), sb.id, sb.rt.o.SystemdCgroup), SystemdCgroup: sb.rt.o.SystemdCgroup, Fast: sb.rt.o.FastInit,
	}
	pid, err := sb.begin(ctx, "init", wire.MethodPodInit, req)
	if err != nil {
		return err
	}
	pins := sb.pins()
	pins.Pid = pid
	if err := sb.rt.host.Pin(pins); err != nil {
		return fmt.Errorf("sandbox %s: %w", sb.id, err)
	}
	return nil
}

// begin has the executor start the sandbox's first process, and notes it.
func (sb *Sandbox) begin(ctx context.Context, what, method string, req any) (pid int, err error) {
	var reply wire.RunReply
	files, err := sb.rt.link.call(ctx, method, req, &reply)
	if errors.Is(err, fault.Unavailable) && ctx.Err() == nil {
		// The executor went away. However far it got, remove its leftovers and call again:
		// nothing depends on this process yet.
		if err = sb.rt.expunge(ctx, sb.id); err == nil {
			files, err = sb.rt.link.call(ctx, method, req, &reply)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("%s of sandbox %s: %w", what, sb.id, err)
	}
	sb.keep(files)
	return reply.Pid, sb.note(func(st *sandboxStatus) {
		st.Pid, st.StartTime, st.Cgroups = reply.Pid, reply.StartTime, reply.Cgroups
	})
}

// nobody is the user of the sandbox's init, an ID in its user namespace: the usual one of that
// name, or the last one if there are fewer.
func (sb *Sandbox) nobody() uint32 {
	const nobody = 65534
	ids := sb.Config().IDs
	if ids == nil {
		return nobody
	}
	return min(nobody, ids.UID.Length-1, ids.GID.Length-1)
}

// rollBack removes a sandbox whose creation failed. If that fails too, the sandbox is kept,
// NotReady, so that it can be stopped and removed again.
func (sb *Sandbox) rollBack(ctx context.Context) error {
	ctx, cancel := undo.Context(ctx)
	defer cancel()
	_, serr := sb.move(sandboxStop, nil) // the init's end is now expected
	err := sb.discard(ctx)
	if err == nil {
		return nil
	}
	if serr == nil {
		_, serr = sb.move(sandboxStopped, nil)
	}
	return errors.Join(err, serr)
}
