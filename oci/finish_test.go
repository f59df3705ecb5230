package oci_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A crispd that starts on a node where many containers cannot be removed (their processes wait
// for a disk) serves before its service manager gives up; they are removed once they can be.
func TestOpenDoesNotWaitForWhatCannotBeRemoved(t *testing.T) {
	inBubble(t, func(b *bed) {
		release := b.m.Executor.Block(wire.MethodDelete)
		for range 20 {
			c := b.start("exit", "0")
			<-c.Done()
			ctx, cancel := context.WithTimeout(b.Context(), time.Second)
			go c.Remove(ctx)
			synctest.Wait()
			cancel()
			b.state(c, oci.Removing)
		}
		begin := time.Now()
		b.reopen()
		if took := time.Since(begin); took > 3*time.Minute {
			b.Errorf("it took %v to come up", took)
		}
		if n := len(b.r.Containers()); n != 20 {
			b.Errorf("%d containers are left, want all 20 that are being removed", n)
		}
		again := b.start("exit", "3") // new containers work
		<-again.Done()
		release()
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		b.ok(again.Remove(b.Context()))
		if left := b.r.Containers(); len(left) > 0 {
			b.Errorf("%d containers are left", len(left))
		}
	})
}
