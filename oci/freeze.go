package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/wire"
)

// freezeKind is the kind of the records of freezes.
const freezeKind = "freezes"

// A Freeze stops containers from running, to be checkpointed at one point in time.
//
// It never outlives the daemon: when a connection ends, the executor thaws what was frozen over
// it, and if the executor died too, the next Open does, from the record written before anything
// is frozen.
type Freeze struct {
	rt   *Runtime
	id   string
	rec  freezeRecord
	late bool // thawLater is at work
}

// A freezeRecord is what to undo after a freeze.
type freezeRecord struct {
	Containers []string
	Scratch    string // useless without the daemon that wrote it; "" = none
}

// Freeze freezes the containers, which must be Running: all of them, or none. The caller must
// call Thaw in any case, and Close last. scratch is a directory, which need not exist yet, for
// what is written meanwhile; if the daemon dies before Close, it is removed.
func (r *Runtime) Freeze(ctx context.Context, containers []*Container, scratch string) (_ *Freeze, err error) {
	f := &Freeze{rt: r, id: NewID(), rec: freezeRecord{Scratch: scratch}}
	for _, c := range containers {
		if st := c.Status().State; st != Running {
			return nil, fault.WrongState.Errorf("container %s is %s: cannot freeze it", c.id, st)
		}
		f.rec.Containers = append(f.rec.Containers, c.id)
	}
	if err := r.o.Records.Keep(freezeKind, f.id, f.rec); err != nil {
		return nil, fmt.Errorf("save freeze: %w", err)
	}
	var steps undo.Stack
	defer steps.RunIf(&err)
	steps.Add("freeze", func() error { return errors.Join(f.Thaw(ctx), f.Close()) })
	_, err = r.link.call(ctx, wire.MethodFreeze, wire.FreezeRequest{IDs: f.rec.Containers}, nil)
	return f, err
}

// Checkpoint writes one of the containers to an empty directory below the scratch directory; the
// container stays frozen. The error is fault.WrongState if CRIU, or the kernel support that it
// needs, is missing.
func (f *Freeze) Checkpoint(ctx context.Context, c *Container, dir string) error {
	_, err := f.rt.link.call(ctx, wire.MethodCheckpoint, wire.CheckpointRequest{ID: c.id, Dir: dir, Frozen: true}, nil)
	return err
}

// Thaw lets the containers run again. It works even if ctx has ended, and may be repeated. After
// an error it is retried in the background.
func (f *Freeze) Thaw(ctx context.Context) error {
	ctx, cancel := undo.Context(ctx)
	defer cancel()
	if err := f.rt.thaw(ctx, f.rec); err != nil {
		f.late = true
		f.rt.work.Go(func() { f.rt.thawLater(f.id, f.rec) })
		return err
	}
	return nil
}

// Close ends the freeze; the scratch directory is the caller's again.
func (f *Freeze) Close() error {
	if f.late {
		return nil // thawLater removes the record
	}
	return f.rt.o.Records.Remove(freezeKind, f.id)
}

func (r *Runtime) thaw(ctx context.Context, rec freezeRecord) error {
	err := r.link.again(ctx, wire.MethodThaw, wire.ThawRequest{IDs: rec.Containers, Dir: rec.Scratch}, nil)
	if err != nil {
		return fmt.Errorf("thaw containers: %w", err)
	}
	return nil
}

// thawLater retries the thaw until it succeeds or the daemon ends: then the next daemon thaws.
func (r *Runtime) thawLater(id string, rec freezeRecord) {
	for pause := backoff.New(10*time.Millisecond, time.Second); pause.Wait(r.closing) == nil; {
		err := r.thaw(r.closing, rec)
		if err == nil {
			err = r.forget(id, rec)
		}
		if err == nil {
			return
		}
		r.log.Error("frozen containers could not be thawed yet", "err", err)
	}
}

// forget removes the leftovers of a freeze that its daemon did not end.
func (r *Runtime) forget(id string, rec freezeRecord) error {
	if rec.Scratch != "" {
		if err := os.RemoveAll(rec.Scratch); err != nil {
			return err
		}
	}
	return r.o.Records.Remove(freezeKind, id)
}

// recoverFreezes undoes the freezes of a daemon that died.
func (r *Runtime) recoverFreezes(ctx context.Context) {
	ids, err := r.o.Records.IDs(freezeKind)
	if err != nil {
		r.log.Error("freezes were not loaded", "err", err)
	}
	for _, id := range ids {
		var rec freezeRecord
		if err := r.o.Records.Load(freezeKind, id, &rec); err != nil {
			r.log.Error("freeze was not loaded", "err", err)
			continue
		}
		r.log.Warn("checkpoint was cut short", "container", rec.Containers)
		if !r.o.Rebooted { // else nothing is frozen
			if err := r.thaw(ctx, rec); err != nil {
				r.log.Error("frozen containers could not be thawed yet", "err", err)
				r.work.Go(func() { r.thawLater(id, rec) })
				continue
			}
		}
		if err := r.forget(id, rec); err != nil {
			r.log.Error("leftovers of a checkpoint were not removed", "err", err)
		}
	}
}
