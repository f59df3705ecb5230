package proc

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// An attempt that succeeds after it was given up ends what it has started, even if it had looked at
// its context before: only the attempt can.
func TestAttemptThatSucceedsTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		looked, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
		result := make(chan error)
		go func() {
			result <- Attempt(ctx, "start", nil,
				func() error { close(looked); <-goOn; return nil },
				func() error { close(ended); return nil })
		}()
		<-looked
		cancel()
		stuck := new(StuckError)
		if err := <-result; !errors.As(err, &stuck) {
			t.Fatalf("got %v", err)
		}
		close(goOn)
		<-stuck.Over
		select {
		case <-ended:
		default:
			t.Error("what was started too late was not ended")
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := false
	err := Attempt(ctx, "start", nil, func() error { cancel(); return nil }, func() error { ended = true; return nil })
	if stuck := new(StuckError); !ended || err == nil || errors.As(err, &stuck) {
		t.Errorf("of an attempt that succeeds as it is given up: ended is %t, error %v", ended, err)
	}
	err = Attempt(t.Context(), "start", nil, func() error { return nil }, func() error { t.Error("ended"); return nil })
	if err != nil {
		t.Error(err)
	}
}
