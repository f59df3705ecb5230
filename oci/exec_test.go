package oci_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
)

// An exec is lost with its executor, before a client waits for it or during the wait. If the client
// got NotFound it would conclude that the container was removed.
func TestExecLostWithItsExecutor(t *testing.T) {
	inBubble(t, func(b *bed) {
		c := b.create("sleep", "for-ever")
		b.ok(c.Start(b.Context()))
		for _, waiting := range []bool{false, true} {
			e, err := c.Exec(b.Context(), oci.ExecConfig{Process: &specs.Process{Args: []string{"/testbin", "sleep", "for-ever"}}})
			b.ok(err)
			lost := make(chan error, 1)
			wait := func() { _, err := e.Wait(b.Context()); lost <- err }
			if waiting {
				go wait()
				synctest.Wait()
			}
			b.m.Executor.Crash()
			synctest.Wait()
			if !waiting {
				go wait()
			}
			if err := <-lost; !errors.Is(err, fault.Unavailable) {
				b.Errorf("waited for when the executor died: %v: %v", waiting, err)
			}
			b.ok(e.Close())
		}
	})
}
