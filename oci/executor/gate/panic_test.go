package gate

import (
	"io"
	"log/slog"
	"testing"
)

// Work that panics is repeated, and may succeed.
func TestWorkGoesOnAfterAPanic(t *testing.T) {
	calls := 0
	ok := Retry(slog.New(slog.NewTextHandler(io.Discard, nil)), "work", "c1", func() {
		if calls++; calls < 3 {
			panic("one")
		}
	})
	if !ok || calls != 3 {
		t.Errorf("%d calls, %v", calls, ok)
	}
}
