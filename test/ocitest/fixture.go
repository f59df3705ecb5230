package ocitest

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
)

// patience bounds each wait; it is not reached on a node that works.
const patience = 30 * time.Second

// A fixture is one node in one test.
type fixture struct {
	*testing.T
	node Node
	r    *oci.Runtime
}

func (f *fixture) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	f.Cleanup(cancel)
	return ctx
}

func (f *fixture) ok(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) is(err error, kind fault.Kind) {
	f.Helper()
	if !errors.Is(err, kind) {
		f.Errorf("got %v, want kind %v", err, kind)
	}
}

// reopen restarts the daemon.
func (f *fixture) reopen() {
	f.Helper()
	f.ok(f.r.Close())
	f.r = f.node.Open(f.T)
}

func (f *fixture) sandbox(edit func(*oci.SandboxConfig)) *oci.Sandbox {
	f.Helper()
	cfg := oci.SandboxConfig{Hostname: "suite"}
	shims, is := f.node.(ShimNode)
	if is {
		cfg.Shim = shims.Shim()
	}
	if edit != nil {
		edit(&cfg)
	}
	sb, err := f.r.CreateSandbox(f.ctx(), cfg)
	f.ok(err)
	if is {
		f.ok(sb.StartShim(f.ctx(), f.node.Spec("sleep", "for-ever"), nil))
	}
	f.ok(sb.Ready([]byte("extra")))
	return sb
}

func (f *fixture) create(sb *oci.Sandbox, edit func(*oci.ContainerConfig), args ...string) *oci.Container {
	f.Helper()
	cfg := oci.ContainerConfig{ID: oci.NewID(), SandboxID: sb.ID(), Spec: f.node.Spec(args...)}
	cfg.Spec.Linux.CgroupsPath = CgroupsPath(sb, cfg.ID)
	if edit != nil {
		edit(&cfg)
	}
	c, err := f.r.Create(f.ctx(), cfg)
	f.ok(err)
	return c
}

func (f *fixture) start(sb *oci.Sandbox, edit func(*oci.ContainerConfig), args ...string) *oci.Container {
	f.Helper()
	c := f.create(sb, edit, args...)
	f.ok(c.Start(f.ctx()))
	return c
}

// again returns c from the current Runtime.
func (f *fixture) again(c *oci.Container) *oci.Container {
	f.Helper()
	found, err := f.r.Container(c.ID())
	f.ok(err)
	return found
}

func (f *fixture) exited(c *oci.Container, code int32, reason string) {
	f.Helper()
	select {
	case <-c.Done():
	case <-time.After(patience):
		f.Fatalf("container is still %v", c.Status().State)
	}
	st := c.Status()
	if st.State != oci.Exited || st.ExitCode != code || st.Reason != reason || st.Pid != 0 {
		f.Errorf("status is %+v, want exited with code %d, %s", st, code, reason)
	}
	if st.FinishedAt.Before(st.StartedAt) || st.FinishedAt.IsZero() {
		f.Errorf("started %v, finished %v", st.StartedAt, st.FinishedAt)
	}
}

// exitedAfterCrash is exited for a container that ended under another executor than
// the one that started it.
func (f *fixture) exitedAfterCrash(c *oci.Container, code int32, reason string) {
	f.Helper()
	<-c.Done()
	if st := c.Status(); st.ExitCode == 255 && st.Reason == "Unknown" && strings.Contains(st.Message, "Linux before 6.15") {
		f.Logf("container %s: %s", c.ID(), st.Message)
		return
	}
	f.exited(c, code, reason)
}

// CgroupsPath returns linux.cgroupsPath of a container of sb, in the format of its
// driver.
func CgroupsPath(sb *oci.Sandbox, id string) string {
	if parent := sb.CgroupParent(); strings.HasSuffix(parent, ".slice") {
		return parent + ":crisp:" + id
	}
	return filepath.Join(sb.CgroupParent(), id)
}

func (f *fixture) running(c *oci.Container) {
	f.Helper()
	if st := c.Status(); st.State != oci.Running || st.Pid == 0 || st.StartedAt.IsZero() {
		f.Fatalf("status is %+v, want running", st)
	}
}

// removeAll removes everything from the node.
func (f *fixture) removeAll() {
	f.Helper()
	if f.r == nil {
		return
	}
	f.ok(f.r.Shutdown(f.ctx()))
	if n, m := len(f.r.Containers()), len(f.r.Sandboxes()); n+m != 0 {
		f.Errorf("%d containers and %d sandboxes are left", n, m)
	}
	f.ok(f.r.Close())
}

// hostPIDs removes the PID namespace from a spec.
func hostPIDs(cfg *oci.ContainerConfig) {
	cfg.Spec.Linux.Namespaces = without(cfg.Spec, specs.PIDNamespace)
}

func without(spec *specs.Spec, kind specs.LinuxNamespaceType) []specs.LinuxNamespace {
	var rest []specs.LinuxNamespace
	for _, ns := range spec.Linux.Namespaces {
		if ns.Type != kind {
			rest = append(rest, ns)
		}
	}
	return rest
}

// until waits until so returns true; otherwise is the failure if it never does.
func (f *fixture) until(otherwise string, so func() bool) {
	f.Helper()
	ctx := f.ctx()
	for pause := backoff.New(time.Millisecond, time.Second); !so(); {
		if pause.Wait(ctx) != nil {
			f.Fatal(otherwise)
		}
	}
}
