package oci_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/oci/wire"
)

// The next daemon thaws what a dead one has frozen, and removes the files that it was writing;
// after a regular end the files are the caller's.
func TestFreezeIsUndone(t *testing.T) {
	b := newBed(t)
	one, two := b.start("sleep", "for-ever"), b.start("sleep", "for-ever")
	scratch := filepath.Join(t.TempDir(), "scratch")
	b.ok(os.Mkdir(scratch, 0o700))

	f, err := b.r.Freeze(t.Context(), []*oci.Container{one, two}, scratch)
	b.ok(err)
	b.ok(f.Checkpoint(t.Context(), one, scratch))
	if got := b.m.Frozen(); len(got) != 2 {
		t.Errorf("frozen: %v, want both", got)
	}
	b.reopen() // as after a crash: nothing was thawed
	if got := b.m.Frozen(); len(got) > 0 {
		t.Errorf("frozen after a restart: %v", got)
	}
	if _, err := os.Stat(scratch); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the scratch directory is still there (err %v)", err)
	}

	one, err = b.r.Container(one.ID())
	b.ok(err)
	b.ok(os.Mkdir(scratch, 0o700))
	f, err = b.r.Freeze(t.Context(), []*oci.Container{one}, scratch)
	b.ok(err)
	b.ok(f.Thaw(t.Context()))
	b.ok(f.Close())
	if got := b.m.Frozen(); len(got) > 0 {
		t.Errorf("frozen after Thaw: %v", got)
	}
	b.reopen()
	if _, err := os.Stat(scratch); err != nil {
		t.Errorf("the scratch directory: %v", err)
	}
}

// A freeze that fails freezes nothing and leaves no record.
func TestFreezeFails(t *testing.T) {
	b := newBed(t)
	running, created := b.start("sleep", "for-ever"), b.create("sleep", "for-ever")
	if _, err := b.r.Freeze(t.Context(), []*oci.Container{running, created}, ""); !errors.Is(err, fault.WrongState) {
		t.Errorf("with a created container: error is %v, want one of kind %v", err, fault.WrongState)
	}
	b.m.Fail(wire.MethodFreeze, fault.WrongState.Errorf("CRIU is not installed"))
	if _, err := b.r.Freeze(t.Context(), []*oci.Container{running}, ""); !errors.Is(err, fault.WrongState) {
		t.Errorf("no CRIU: error is %v, want one of kind %v", err, fault.WrongState)
	}
	if left, _ := filepath.Glob(filepath.Join(b.m.Root, "freezes", "*")); len(left) > 0 || len(b.m.Frozen()) > 0 {
		t.Errorf("left behind: %v, frozen: %v", left, b.m.Frozen())
	}
}
