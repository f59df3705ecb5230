package bridge

import (
	"context"
	"errors"
	"testing"
	"time"
)

// While one call's nft hangs, other calls can give up waiting for the lock: ADD, DEL and GC, for
// which crispd's start waits.
func TestLocksCanBeGivenUp(t *testing.T) {
	n := &Net{Name: "net", DataDir: t.TempDir(), Subnets: prefixes("10.1.0.0/24")}
	for _, name := range []string{addressesLock, tableLock} {
		unlock, err := n.lock(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := n.lock(ctx, name); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("lock %s: %v", name, err)
		}
		if err := n.Sweep(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("sweep while %s is held: %v", name, err)
		}
		unlock()
		if err := n.Sweep(t.Context(), nil); err != nil {
			t.Error(err)
		}
	}
}
