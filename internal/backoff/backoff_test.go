package backoff

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestNext(t *testing.T) {
	b := New(10*time.Millisecond, 50*time.Millisecond)
	var got []time.Duration
	for range 5 {
		got = append(got, b.Next()/time.Millisecond)
	}
	if want := []time.Duration{10, 20, 40, 50, 50}; !slices.Equal(got, want) {
		t.Errorf("pauses of %v ms, want %v", got, want)
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		b := New(time.Second, time.Minute)
		var err error
		tries := 0
		for ; err == nil; err = b.Wait(ctx) {
			tries++
		}
		// At 0, 1, 3 and 7 s.
		if tries != 4 || time.Since(begun) != 10*time.Second || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%d tries in %v, then %v", tries, time.Since(begun), err)
		}
	})
}
