package oci_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/test/ocitest"
	"github.com/crisp-cri/crisp/test/powercut"
)

// The IDs of the objects that the test makes.
var sandbox, first, second = oci.NewID(), oci.NewID(), oci.NewID()

// machineAt returns a fake node whose disk is below dir, with an empty kernel and an empty
// /run. end ends the processes on it.
func machineAt(t *testing.T, dir string, records oci.Records) (o oci.Options, end func()) {
	m := ocitest.NewMachine(t)
	m.Root = dir
	o = m.Options(t)
	o.Records, o.Log = records, slog.New(slog.DiscardHandler)
	return o, m.Reboot
}

// recordsAt opens the records below dir as crispd does.
func recordsAt(dir string) (*checkpoint.Manager, error) {
	return checkpoint.Open(dir, "", slog.New(slog.DiscardHandler))
}

// What a power cut leaves of sandboxes and containers, which is not synced, is of one moment for each:
// whole, an earlier one or nothing. It can be removed without a trace.
func TestPowerCut(t *testing.T) {
	dir := t.TempDir()
	records, err := recordsAt(dir)
	if err != nil {
		t.Fatal(err)
	}
	powercut.Case{
		Name: "life",
		Dir:  dir,
		Run: func(dir string, mark func(string)) {
			synctest.Test(t, func(t *testing.T) { aLife(t, dir, records, mark) })
		},
		Check: func(dir string, _ []string) (err error) {
			synctest.Test(t, func(t *testing.T) { err = afterPowerCut(t, dir) })
			return err
		},
		Lane: powercut.RecordLanes("", "sandboxes", "containers"),
	}.Test(t)
}

// aLife takes a sandbox and two containers from their creation to their removal.
func aLife(t *testing.T, dir string, records oci.Records, mark func(string)) {
	ctx := t.Context()
	ok := func(what string, err error) {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		mark(what)
	}
	o, end := machineAt(t, dir, records)
	defer end()
	r, err := oci.Open(ctx, o)
	if err != nil {
		t.Error(err)
		return
	}
	defer r.Close()
	sb, err := r.CreateSandbox(ctx, oci.SandboxConfig{ID: sandbox, Name: "sandbox"})
	if err != nil {
		t.Error(err)
		return
	}
	ok("sandbox", sb.Ready([]byte("address")))
	c, err := r.Create(ctx, oci.ContainerConfig{ID: first, Name: "first", SandboxID: sandbox, Spec: ocitest.Spec("exit", "7")})
	ok("first", err)
	if err := c.Start(ctx); err != nil {
		t.Error(err)
	}
	<-c.Done()
	mark("first ended")
	other, err := r.Create(ctx, oci.ContainerConfig{ID: second, Name: "second", SandboxID: sandbox, Spec: ocitest.Spec("exit", "0")})
	ok("second", err)
	ok("second changed", other.Apply(ctx, oci.Change{Extra: []byte("note")}))
	ok("first removed", c.Remove(ctx))
	ok("second removed", other.Remove(ctx))
	if err := errors.Join(sb.BeginStop(), sb.Unpin(ctx), sb.Stopped()); err != nil {
		t.Error(err)
	}
	ok("sandbox removed", sb.Remove(ctx))
}

// afterPowerCut opens what is left on the disk below dir.
func afterPowerCut(t *testing.T, dir string) error {
	ctx := t.Context()
	boot := filepath.Join(dir, "boot.json") // of the kernel that was running
	if err := os.WriteFile(boot, []byte(`{"bootID":"before","clean":false}`), 0o600); err != nil {
		return err
	}
	records, err := recordsAt(dir)
	if err != nil {
		return err
	}
	o, end := machineAt(t, dir, records)
	defer end()
	o.Rebooted = true
	r, err := oci.Open(ctx, o)
	if err != nil {
		return err
	}
	defer r.Close()
	if sb, err := r.Sandbox(sandbox); err == nil && string(sb.Extra()) != "" && string(sb.Extra()) != "address" {
		return fmt.Errorf("of the sandbox %q is kept", sb.Extra())
	}
	c, err := r.Container(first)
	if err == nil && c.Status().ExitCode != 7 && c.Status().Reason != "Reboot" {
		return fmt.Errorf("the first has ended with %+v", c.Status())
	}
	c, err = r.Container(second)
	if err == nil && string(c.Extra()) != "" && string(c.Extra()) != "note" {
		return fmt.Errorf("of the second %q is kept", c.Extra())
	}
	for _, c := range r.Containers() {
		if st := c.Status().State; st != oci.Exited {
			return fmt.Errorf("container %s is %v on a machine that was restarted", c.ID(), st)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := r.Shutdown(ctx); err != nil {
		return err
	}
	left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if len(left) > 0 {
		return fmt.Errorf("left is %q", left)
	}
	if _, err := os.Stat(filepath.Join(dir, "quarantine")); err == nil {
		return errors.New("a record was corrupt")
	}
	return err
}
