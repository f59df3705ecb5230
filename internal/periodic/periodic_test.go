package periodic

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		begun, calls := time.Now(), 0
		Run(ctx, time.Minute, func(context.Context) {
			if calls++; calls == 3 {
				cancel()
			}
		})
		if took := time.Since(begun); calls != 3 || took != 3*time.Minute {
			t.Errorf("%d calls in %v", calls, took)
		}
	})
}
