package image

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/image/progress"
)

// A pull is shown with the pod that it is for from its first moment: its work may be ahead of the
// caller that began it.
func TestPullShowsWhoBeganIt(t *testing.T) {
	var fs flights
	fs.start(t.Context())
	for range 20_000 {
		_, err := fs.join(t.Context(), journey{"key", "image", "default/web"}, func(context.Context, *progress.Pull) (Image, error) {
			if list := fs.tracker.List(); len(list) != 1 || list[0].Waiters != 1 || len(list[0].For) != 1 {
				t.Errorf("a pull that begins: %+v", list)
			}
			return Image{}, nil
		})
		if err != nil || t.Failed() {
			t.Fatal(err)
		}
	}
	fs.wait()
}

// What pulls have used is returned to the kernel once, when there has been none for a while.
func TestPullsGiveBackTheirMemory(t *testing.T) {
	defer func(f func()) { freeMemory = f }(freeMemory)
	synctest.Test(t, func(t *testing.T) {
		freed := 0
		freeMemory = func() { freed++ }
		var fs flights
		fs.start(t.Context())
		pull := func(key string, takes time.Duration) {
			_, err := fs.join(t.Context(), journey{key: key}, func(context.Context, *progress.Pull) (Image, error) {
				time.Sleep(takes)
				return Image{}, nil
			})
			if err != nil {
				t.Error(err)
			}
		}
		at := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			if freed != want {
				t.Errorf("%s memory was freed %d times, want %d", when, freed, want)
			}
		}
		go pull("long", 20*time.Second)
		for range 3 {
			pull("short", time.Second)
			time.Sleep(idleTime)
			at("beside another pull", 0)
		}
		time.Sleep(20*time.Second - 3*(time.Second+idleTime) + idleTime/2)
		at("at once", 0)
		pull("next", 0)
		time.Sleep(idleTime - time.Nanosecond)
		at("soon after the last", 0)
		time.Sleep(time.Nanosecond)
		at("after the last", 1)
		time.Sleep(time.Hour)
		at("much later", 1)
	})
}
