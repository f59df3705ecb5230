package oci

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/wire"
)

// Create prepares a container without running anything in it. Its sandbox must be Ready (else
// fault.WrongState) and its name free (else fault.Exists). If a step fails, the steps before it
// are undone, last first.
func (r *Runtime) Create(ctx context.Context, cfg ContainerConfig) (_ *Container, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)

	if cfg.ID == "" {
		cfg.ID = NewID()
	}
	if cfg.Spec == nil || cfg.Spec.Process == nil || cfg.Spec.Root == nil {
		return nil, fault.Invalid.Errorf("container %s: its spec has no process or no root", cfg.ID)
	}
	sb, err := r.sandboxes.get(cfg.SandboxID)
	if err != nil {
		return nil, err
	}
	cfg.SandboxID = sb.ID()
	release, err := r.containers.reserve(cfg.Name, cfg.ID)
	if err != nil {
		return nil, err
	}
	steps.Add("name reservation", func() error { release(); return nil })

	rec := &containerRecord{CreatedAt: r.now(r.containers.newest(cfg.Name)), Config: cfg}
	c := r.newContainer(cfg.ID, sb, rec)
	if err := os.Mkdir(c.runDir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of container %s: %w", c.id, err)
	}
	steps.Add("container directory", func() error { return os.RemoveAll(c.runDir) })
	steps.Add("container record", func() error { return r.o.Records.Remove(containerKind, c.id) })
	if err := r.o.Records.Save(containerKind, c.id, rec); err != nil {
		return nil, fmt.Errorf("save container %s: %w", c.id, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := sb.adopt(c); err != nil {
		return nil, err
	}
	r.containers.add(c) // visible from here on; nothing below may fail
	c.emit(ContainerCreated)
	return c, nil
}

// Warm tells the executor that a start will follow, which makes it quicker: the waits for the
// kernel happen while the container is still being created. Warm does not wait for the answer,
// and an executor that does not know the call does no harm.
func (r *Runtime) Warm() {
	r.work.Go(func() {
		ctx, cancel := context.WithTimeout(r.closing, 5*time.Second)
		defer cancel()
		_, _ = r.link.call(ctx, wire.MethodWarm, nil, nil)
	})
}
