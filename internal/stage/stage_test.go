package stage_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/crisp-cri/crisp/internal/stage"
)

// The stages of a call follow one another, and its parts lie within them. A call that waits for the
// work of another has that one's stages from then on.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard []string
		first, mine := stage.With(t.Context(), func(name string, took time.Duration) { heard = append(heard, name+" "+took.String()) })
		begin := time.Now()
		work, log := stage.Fork(first)
		stage.Follow(first, log)
		stage.Next(work, "namespaces")
		time.Sleep(time.Second)
		stage.Next(work, "cni")
		end := stage.Enter(work, "cni.portmap")
		time.Sleep(time.Second)
		joined := time.Now()
		second, theirs := stage.With(t.Context(), nil)
		stage.Follow(second, log)
		time.Sleep(2 * time.Second)

		want := []stage.Share{{Name: "namespaces", Took: time.Second}, {Name: "cni", Took: 3 * time.Second}, {Name: "cni.portmap", Took: 3 * time.Second}}
		if d := cmp.Diff(want, stage.Shares(mine.Spans(), begin, time.Now())); d != "" {
			t.Error(d)
		}
		if got := stage.Open(mine.Spans()); got != "cni" {
			t.Errorf("the current stage is %q, want cni", got)
		}
		if got := stage.OpenPart(mine.Spans()); got != "cni.portmap" {
			t.Errorf("the current part is %q, want cni.portmap", got)
		}
		end()
		end() // a second end has no effect
		log.Stop()
		time.Sleep(time.Second)
		want = []stage.Share{{Name: "cni", Took: 2 * time.Second}, {Name: "cni.portmap", Took: 2 * time.Second}}
		if d := cmp.Diff(want, stage.Shares(theirs.Spans(), joined, time.Now())); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff([]string{"namespaces 1s", "cni.portmap 3s", "cni 3s"}, heard); d != "" {
			t.Error(d)
		}
		stage.Count(work, "bytes", 3)
		stage.Count(first, "bytes", 4)
		if mine.Counted("bytes") != 7 || theirs.Counted("bytes") != 3 {
			t.Errorf("counted %d and %d, want 7 and 3", mine.Counted("bytes"), theirs.Counted("bytes"))
		}
	})
}

// Without a log nothing is recorded, and nothing fails; the record of a call is bounded.
func TestNoLogAndTooMuch(t *testing.T) {
	ctx, log := stage.Fork(context.Background())
	stage.Next(ctx, "cni")
	stage.Enter(ctx, "cni.bridge")()
	stage.Count(ctx, "bytes", 1)
	stage.Follow(ctx, log)
	log.Stop()

	ctx, log = stage.With(ctx, nil)
	for range 10000 {
		stage.Next(ctx, "layer")
		stage.Enter(ctx, "layer.part")()
	}
	if n := len(log.Spans()); n > 1000 {
		t.Errorf("%d spans were kept", n)
	}
}
