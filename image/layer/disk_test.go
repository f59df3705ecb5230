package layer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
)

// slowDisk returns a disk whose syncs end when the test sends their result.
func slowDisk() (d *disk, begun chan int, end chan error) {
	begun, end = make(chan int, 100), make(chan error)
	syncs := 0
	return &disk{syncfs: func(int) error {
		syncs++
		begun <- syncs
		return <-end
	}}, begun, end
}

// A caller that gives up a pull does not wait for a disk that others keep busy. Later
// callers share the next sync: the one under way may have missed their writes.
func TestSyncIsSharedAndGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, begun, end := slowDisk()
		first, cancel := context.WithCancel(t.Context())
		results := make(chan error, 100)
		go func() { results <- d.sync(first, 0) }()
		synctest.Wait()
		for range 10 {
			go func() { results <- d.sync(t.Context(), 0) }()
		}
		synctest.Wait()
		if n := len(begun); n != 1 {
			t.Fatalf("%d syncs have begun, want 1", n)
		}
		cancel()
		synctest.Wait()
		if len(results) != 1 {
			t.Fatalf("%d callers have returned, want the one that gave up", len(results))
		}
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Errorf("the caller that gave up got %v", err)
		}
		end <- nil // the sync has gone on without its caller
		synctest.Wait()
		if len(results) != 0 {
			t.Errorf("%d callers have taken a sync that had begun before their call", len(results))
		}
		end <- nil
		synctest.Wait()
		if n := len(begun); n != 2 || len(results) != 10 {
			t.Errorf("%d syncs for %d of 10 waiting callers, want 2 for all", n, len(results))
		}
		for range len(results) {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		d.syncing.Wait()
	})
}

// An error of a sync is reported for all files that it may concern, although the caller of the sync
// has given up.
func TestLossOfASyncThatWasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, end := slowDisk()
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error)
		go func() { result <- d.sync(ctx, 0) }()
		synctest.Wait()
		cancel()
		<-result
		end <- unix.EIO
		for _, c := range []struct {
			before int64
			want   error
		}{{0, unix.EIO}, {1, nil}} {
			go func() { result <- d.sync(t.Context(), c.before) }()
			end <- nil
			if err := <-result; !errors.Is(err, c.want) {
				t.Errorf("written when %d were lost: %v, want %v", c.before, err, c.want)
			}
		}
		d.syncing.Wait()
	})
}
