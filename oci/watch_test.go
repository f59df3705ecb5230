package oci_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A hanging executor is reported and then replaced, and no container is affected; one that
// is merely slow is not.
func TestExecutorStandsStill(t *testing.T) {
	inBubble(t, func(b *bed) {
		c := b.start("sleep", "1h", "exit", "7")
		slow := b.m.Executor.Block(wire.MethodPing)
		time.Sleep(12 * time.Second)
		if b.r.Trouble() != nil {
			b.Error("a pause is reported as trouble")
		}
		slow()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := b.r.ExecutorRestarts(); n > 0 || b.r.Trouble() != nil {
			b.Errorf("after a pause the executor was replaced %d times, %v", n, b.r.Trouble())
		}

		still := b.m.Executor.Block(wire.MethodPing)
		time.Sleep(40 * time.Second)
		if b.r.Trouble() == nil {
			b.Error("an executor that does not answer is not reported")
		}
		if n := b.r.ExecutorRestarts(); n > 0 {
			b.Errorf("the executor was replaced at once, %d times", n)
		}
		for b.r.ExecutorRestarts() == 0 {
			time.Sleep(time.Second)
		}
		still()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := b.r.ExecutorRestarts(); n != 1 || b.r.Trouble() != nil {
			b.Errorf("the executor was replaced %d times, %v", n, b.r.Trouble())
		}
		b.state(c, oci.Running)
		<-c.Done()
		if st := c.Status(); st.ExitCode != 7 {
			b.Errorf("status is %+v", st)
		}
	})
}

// The successor of a hanging executor gets as much time as that one.
func TestSuccessorHasAsLong(t *testing.T) {
	inBubble(t, func(b *bed) {
		b.start("sleep", "1h")
		still := b.m.Executor.Block(wire.MethodPing)
		begun := time.Now()
		replaced := func(times uint64) time.Duration {
			for b.r.ExecutorRestarts() < times {
				time.Sleep(time.Second)
			}
			took := time.Since(begun)
			begun = time.Now()
			return took
		}
		first, second := replaced(1), replaced(2)
		still()
		if second < first-pingTime {
			b.Errorf("the first was replaced after %v, the second after %v", first, second)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if b.r.Trouble() != nil {
			b.Errorf("trouble remains: %v", b.r.Trouble())
		}
	})
}

// pingTime is the longest time between two pings of the executor.
const pingTime = 10 * time.Second
