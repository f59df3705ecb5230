package oci_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A caller that gives up waiting for a change of limits does not know its outcome;
// the container's config has it, and a concurrent change is not lost.
func TestUpdateGivenUpByItsCaller(t *testing.T) {
	for name, refusal := range map[string]error{"made": nil, "refused": fault.Invalid.Errorf("no")} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bed) {
				c := b.start("sleep", "1h")
				b.m.Executor.Fail(wire.MethodUpdate, refusal)
				release := b.m.Executor.Block(wire.MethodUpdate)
				ctx, cancel := context.WithCancel(b.Context())
				ended := make(chan error, 2)
				limit, shares := int64(64<<20), uint64(99)
				go func() {
					ended <- c.Apply(ctx, oci.Change{Resources: &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}})
				}()
				synctest.Wait() // the update is in the executor
				b.m.Executor.Fail(wire.MethodUpdate, nil)
				cancel()
				if err := <-ended; !errors.Is(err, context.Canceled) {
					b.Errorf("the caller that gave up got %v", err)
				}
				go func() {
					ended <- c.Apply(b.Context(), oci.Change{Resources: &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}}})
				}()
				synctest.Wait()
				release()
				b.ok(<-ended)
				synctest.Wait()
				r := c.Config().Spec.Linux.Resources
				if made := r.Memory != nil && r.Memory.Limit != nil && *r.Memory.Limit == limit; made != (refusal == nil) {
					b.Errorf("the config says %v about a change that was %s", made, name)
				}
				if r.CPU == nil || r.CPU.Shares == nil || *r.CPU.Shares != shares {
					b.Errorf("the concurrent change is lost: %+v", r.CPU)
				}
			})
		})
	}
}
