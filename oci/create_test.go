package oci_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/ocitest"
)

// Each failed step of a creation undoes the previous ones, and the retry succeeds.
func TestCreateRollsBack(t *testing.T) {
	no := fault.Unavailable.Errorf("no")
	for name, fail := range map[string]func(m *ocitest.Machine, err error){
		"pin":     func(m *ocitest.Machine, err error) { m.FailHost("pin", err) },
		"cgroup":  func(m *ocitest.Machine, err error) { m.FailHost("cgroup", err) },
		"podinit": func(m *ocitest.Machine, err error) { m.Fail(wire.MethodPodInit, err) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bed) {
				b.ok(b.sb.BeginStop())
				b.ok(b.sb.Stopped())
				b.ok(b.sb.Remove(b.Context()))
				cfg := oci.SandboxConfig{Name: "name", SharedPID: true}
				fail(b.m, no)
				_, err := b.r.CreateSandbox(b.Context(), cfg)
				if !errors.Is(err, no) {
					b.Fatalf("got %v", err)
				}
				if name == "cgroup" { // a cgroup that cannot be made cannot be removed either
					if sb, ok := b.r.SandboxByName("name"); !ok || sb.State() != oci.SandboxNotReady {
						b.Fatalf("sandbox that could not be undone is not there to be removed")
					}
					fail(b.m, nil)
					sb, _ := b.r.SandboxByName("name")
					b.ok(sb.Remove(b.Context()))
				}
				fail(b.m, nil)
				b.empty()
				sb, err := b.r.CreateSandbox(b.Context(), cfg)
				b.ok(err)
				b.ok(sb.Ready(nil))
			})
		})
	}
}

// A sandbox that is being stopped accepts no new container, and starts none.
func TestStoppingSandboxTakesNothing(t *testing.T) {
	inBubble(t, func(b *bed) {
		c := b.create("exit", "0")
		b.ok(b.sb.BeginStop())
		_, err := b.r.Create(b.Context(), oci.ContainerConfig{Name: "n", SandboxID: b.sb.ID(), Spec: ocitest.Spec("exit", "0")})
		if !errors.Is(err, fault.WrongState) {
			b.Errorf("create: %v", err)
		}
		if err := c.Start(b.Context()); !errors.Is(err, fault.WrongState) {
			b.Errorf("start: %v", err)
		}
		b.state(c, oci.Created)
		if len(b.sb.Containers()) != 1 || len(b.r.Containers()) != 1 {
			b.Error("the container that was refused is there")
		}
		b.sb = b.sandbox("")
		_, err = b.r.Create(b.Context(), oci.ContainerConfig{Name: "n", SandboxID: b.sb.ID(), Spec: ocitest.Spec("exit", "0")})
		b.ok(err)
	})
}

// The target of a PID namespace is checked when it is joined, not before.
func TestPIDTarget(t *testing.T) {
	inBubble(t, func(b *bed) {
		target := b.create("sleep", "for-ever")
		create := func() *oci.Container {
			c, err := b.r.Create(b.Context(), oci.ContainerConfig{
				SandboxID: b.sb.ID(), Spec: ocitest.Spec("exit", "0"), PIDTarget: target.ID(),
			})
			b.ok(err)
			return c
		}
		if err := create().Start(b.Context()); !errors.Is(err, fault.WrongState) {
			b.Errorf("with a target that was not started: %v", err)
		}
		b.ok(target.Start(b.Context()))
		b.ok(create().Start(b.Context()))
		late := create()
		b.ok(target.Stop(b.Context(), unix.SIGTERM, 0))
		if err := late.Start(b.Context()); !errors.Is(err, fault.WrongState) {
			b.Errorf("with a target that has ended: %v", err)
		}
		if st := late.Status(); st.State != oci.Exited || st.Reason != "StartError" {
			b.Errorf("status is %+v", st)
		}
		b.sb = b.sandbox("")
		if err := create().Start(b.Context()); !errors.Is(err, fault.Invalid) {
			b.Errorf("with a target in another sandbox: %v", err)
		}
	})
}
