package periodic

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/test/testenv"
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

// A time has passed although the machine slept, or the clock was set back, since it was chosen.
func TestPast(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		t    time.Time
		want bool
	}{
		"later":               {now.Add(time.Hour), false},
		"earlier":             {now.Add(-time.Second), true},
		"slept":               {testenv.Slept(now.Add(time.Hour), 2*time.Hour), true},
		"slept, not for long": {testenv.Slept(now.Add(time.Hour), time.Minute), false},
		"set back":            {testenv.Slept(now.Add(-time.Second), -2*time.Hour), true},
		"never":               {time.Time{}, true},
	} {
		if got := Past(test.t); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
