package server

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/stage"
)

// A bench has creations with a build step whose duration the test controls.
type bench struct {
	*creations
	work      detached
	stop      context.CancelFunc
	builds    int
	undone    []string
	published []string
	err       error         // of the build
	undo      error         // of the discard
	took      time.Duration // of the build
	slow      time.Duration // duration of the discard
	deaf      bool          // the build ignores its cancellation
}

func newBench(t *testing.T) *bench {
	b := &bench{took: time.Minute}
	ctx, cancel := context.WithCancel(context.Background())
	b.stop = cancel
	b.creations = newCreations(ctx, &b.work, slog.New(slog.NewTextHandler(t.Output(), nil)), "thing")
	b.delivered = func(id string) { b.published = append(b.published, id) }
	t.Cleanup(cancel)
	return b
}

// call requests an object.
func (b *bench) call(ctx context.Context, name string, req proto.Message) (string, error) {
	return b.do(ctx, name, req, b.build)
}

func (b *bench) build(ctx context.Context, c *creation) error {
	b.builds++
	c.enter(ctx, "building")
	if b.deaf {
		ctx = context.WithoutCancel(ctx)
	}
	select {
	case <-time.After(b.took):
	case <-ctx.Done():
		return ctx.Err()
	}
	c.discard = func(context.Context) error {
		time.Sleep(b.slow)
		b.undone = append(b.undone, c.id)
		return b.undo
	}
	return b.err
}

// A slow network or a large base image may take long; a hang anywhere else does not keep a creation
// forever.
func TestStagesThatTakeLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.stop()
		for _, test := range []struct {
			stage string
			takes time.Duration
			ends  bool
		}{
			{"cni", 200 * time.Second, true}, {"cni", time.Hour, false},
			{"image", time.Hour, true}, {"rootfs", time.Hour, false},
			{"relabel volumes", time.Hour, true}, {"record", time.Hour, true},
		} {
			_, err := b.do(t.Context(), test.stage+test.takes.String(), wants("x"), func(ctx context.Context, c *creation) error {
				ctx, cancel := c.enter(ctx, test.stage)
				defer cancel()
				c.discard = func(context.Context) error { return nil }
				select {
				case <-time.After(test.takes):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			if (err == nil) != test.ends {
				t.Errorf("stage %s that takes %v: %v", test.stage, test.takes, err)
			}
		}
	})
}

// goCall is call in the background.
func (b *bench) goCall(ctx context.Context, name string, req proto.Message) <-chan answer {
	got := make(chan answer, 1)
	go func() {
		id, err := b.call(ctx, name, req)
		got <- answer{id, err}
	}()
	synctest.Wait()
	return got
}

type answer struct {
	id  string
	err error
}

func wants(what string) proto.Message { return &cri.PodSandboxMetadata{Name: what} }

// Two clients with the same request get the same object, and it is made once.
func TestSameRequestJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		first := b.goCall(t.Context(), "a", wants("x"))
		second := b.goCall(t.Context(), "a", wants("x"))
		one, two := <-first, <-second
		if one.err != nil || two.err != nil || one.id != two.id || b.builds != 1 {
			t.Errorf("got %v and %v from %d builds", one, two, b.builds)
		}
		if len(b.published) != 1 || len(b.byName) != 0 || len(b.hidden) != 0 {
			t.Errorf("published %v, by name %v, hidden %v", b.published, b.byName, b.hidden)
		}
	})
}

// The kubelet's timeout must not waste the work: its next call joins it.
func TestRepetitionAfterTimeoutJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		short, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := b.call(short, "a", wants("x"))
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `in stage "building" for 10s`) {
			t.Errorf("first call: %v, want the deadline, with the stage", err)
		}
		id, err := b.call(t.Context(), "a", wants("x"))
		if err != nil || id == "" || b.builds != 1 {
			t.Errorf("repetition: %q, %v after %d builds", id, err, b.builds)
		}
	})
}

// An object that is finished after all callers have left is not listed, and the next call returns
// it.
func TestRepetitionAfterTheEndCollects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.call(short, "a", wants("x")); err == nil {
			t.Error("first call did not time out")
		}
		time.Sleep(b.took)
		synctest.Wait()
		if len(b.hidden) != 1 || len(b.published) != 0 {
			t.Errorf("finished and uncollected: hidden %v, published %v", b.hidden, b.published)
		}
		id, err := b.call(t.Context(), "a", wants("x"))
		if err != nil || b.builds != 1 || b.isHidden(id) || len(b.published) != 1 {
			t.Errorf("repetition: %q, %v, %d builds, published %v", id, err, b.builds, b.published)
		}
		time.Sleep(2 * uncollectedLife)
		if len(b.undone) != 0 {
			t.Errorf("undone %v after it was collected", b.undone)
		}
	})
}

// An object that no caller requests again is removed, and its name is free again.
func TestUncollectedIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.slow = 10 * time.Second
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.call(short, "a", wants("x")); err == nil {
			t.Error("first call did not time out")
		}
		time.Sleep(b.took + uncollectedLife)
		synctest.Wait()
		// While it is being removed, a new call waits and then starts over, with any configuration,
		// once the name is free.
		id, err := b.call(t.Context(), "a", wants("x"))
		if err != nil || b.builds != 2 || len(b.undone) != 1 || b.undone[0] == id {
			t.Errorf("call during undo: %q, %v, %d builds, undone %v", id, err, b.builds, b.undone)
		}
	})
}

// An object that cannot be removed is listed, so that a client can remove it.
func TestWhatResistsUndoIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.undo = fault.Unavailable.Errorf("plugin hangs")
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.call(short, "a", wants("x")); err == nil {
			t.Error("first call did not time out")
		}
		time.Sleep(b.took + uncollectedLife + time.Second)
		synctest.Wait()
		if len(b.hidden) != 0 || len(b.byName) != 0 || len(b.undone) != 1 {
			t.Errorf("hidden %v, by name %v, undone %v", b.hidden, b.byName, b.undone)
		}
	})
}

func TestAnotherRequestUnderTheSameName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		first := b.goCall(t.Context(), "a", wants("x"))
		time.Sleep(3 * time.Second)
		_, err := b.call(t.Context(), "a", wants("y"))
		if !errors.Is(err, fault.Exists) || !strings.Contains(err.Error(), `in stage "building" for 3s`) {
			t.Errorf("got %v, want fault.Exists with stage and age", err)
		}
		if got := <-first; got.err != nil {
			t.Errorf("the first one: %v", got.err)
		}
	})
}

// All waiting callers get the error; the next call tries again.
func TestFailureIsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.err = fault.Unavailable.Errorf("no address left")
		first := b.goCall(t.Context(), "a", wants("x"))
		second := b.goCall(t.Context(), "a", wants("x"))
		if one, two := <-first, <-second; one.err != b.err || two.err != b.err || b.builds != 1 {
			t.Errorf("got %v and %v from %d builds", one, two, b.builds)
		}
		b.err = nil
		if id, err := b.call(t.Context(), "a", wants("x")); err != nil || b.builds != 2 || b.isHidden(id) {
			t.Errorf("retry: %q, %v from %d builds", id, err, b.builds)
		}
	})
}

// If the object already exists, each caller is told whether it matches its own request, not that of
// a concurrent caller.
func TestObjectThatIsThereIsAnsweredToEachCallerApart(t *testing.T) {
	for _, first := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			lookUp := func(same bool) <-chan answer {
				got := make(chan answer, 1)
				go func() {
					id, err := b.do(t.Context(), "a", wants("x"), func(_ context.Context, c *creation) error {
						time.Sleep(time.Second)
						if !same {
							return fault.Exists.Errorf("it is another one")
						}
						c.id, c.found = "there", true
						return nil
					})
					got <- answer{id, err}
				}()
				synctest.Wait()
				return got
			}
			one, other := lookUp(first), lookUp(!first)
			want := map[bool]func(answer) bool{
				true:  func(a answer) bool { return a.err == nil && a.id == "there" },
				false: func(a answer) bool { return errors.Is(a.err, fault.Exists) },
			}
			if a := <-one; !want[first](a) {
				t.Errorf("same %v: %+v", first, a)
			}
			if a := <-other; !want[!first](a) {
				t.Errorf("same %v, while another looked: %+v", !first, a)
			}
			if len(b.byName) > 0 || len(b.hidden) > 0 {
				t.Errorf("left: %v, %v", b.byName, b.hidden)
			}
		})
	}
}

// When crispd ends it cancels running builds; it must not wait for a plugin.
func TestStopEndsBuilds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.took = time.Hour
		begin := time.Now()
		first := b.goCall(t.Context(), "a", wants("x"))
		b.stop()
		b.work.wait()
		if got := <-first; !errors.Is(got.err, context.Canceled) || time.Since(begin) != 0 {
			t.Errorf("got %v after %v", got, time.Since(begin))
		}
		if _, err := b.call(t.Context(), "b", wants("x")); !errors.Is(err, fault.Unavailable) {
			t.Errorf("call after the end: %v", err)
		}
	})
}

func TestPanicOfABuildIsAnError(t *testing.T) {
	b := newBench(t)
	_, err := b.do(t.Context(), "a", wants("x"), func(context.Context, *creation) error { panic("bug") })
	if err == nil || !strings.Contains(err.Error(), "bug") {
		t.Errorf("got %v", err)
	}
}

// Calls arrive until the very end. Work that started after Close has waited for the rest would use
// what is closed next, and nothing would wait for it.
func TestNothingBeginsAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		var ts tasks
		ts.start(context.Background(), &b.work)
		inner := errors.New("not run")
		b.work.start(func() {
			time.Sleep(time.Minute)
			inner = ts.do(context.Background(), "what a removal begins", func(context.Context) error { return nil })
		})
		b.work.close()
		if inner != nil {
			t.Errorf("what ran was not finished: %v", inner)
		}
		ran := false
		err := ts.do(t.Context(), "stop", func(context.Context) error { ran = true; return nil })
		if !errors.Is(err, fault.Unavailable) || ran {
			t.Errorf("task: ran %v, %v", ran, err)
		}
		if _, err := b.call(t.Context(), "a", nil); !errors.Is(err, fault.Unavailable) || b.builds > 0 {
			t.Errorf("creation: %d builds, %v", b.builds, err)
		}
	})
}

// Callers with the same key share one run, which outlives them.
func TestTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var work detached
		var ts tasks
		ts.start(context.Background(), &work)
		runs := 0
		run := func(context.Context) error {
			runs++
			time.Sleep(time.Minute)
			return nil
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := ts.do(short, "stop", run); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("impatient caller: %v", err)
		}
		if err := ts.do(t.Context(), "stop", run); err != nil || runs != 1 {
			t.Errorf("patient caller: %v after %d runs", err, runs)
		}
		if err := ts.do(t.Context(), "stop", run); err != nil || runs != 2 {
			t.Errorf("next caller: %v after %d runs", err, runs)
		}
		// Updates must not be shared: each makes another change.
		for range 3 {
			work.start(func() {
				if err := ts.alone(t.Context(), "update", run); err != nil {
					t.Error(err)
				}
			})
		}
		begin := time.Now()
		synctest.Wait()
		work.wait()
		if runs != 5 || time.Since(begin) != 3*time.Minute {
			t.Errorf("%d runs in %v, want 3 more, one after the other", runs, time.Since(begin))
		}
	})
}

// If an error means that nothing was made, the caller gets it only after everything was removed,
// whether the work can be cancelled, cannot, or has just ended.
func TestUndoneBeforeTheAnswer(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			b.deaf, b.slow = deaf, time.Second
			b.took = 10 * time.Second
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := b.must(ctx, "a", wants("x"), b.build); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			if want := map[bool]int{true: 1}[deaf]; len(b.undone) != want {
				t.Errorf("undone: %v", b.undone)
			}
			if _, taken := b.byName["a"]; taken || len(b.hidden) > 0 {
				t.Errorf("left: %v, %v", b.byName, b.hidden)
			}
			if _, err := b.must(t.Context(), "a", wants("x"), b.build); err != nil || b.builds != 2 {
				t.Errorf("%d builds, %v", b.builds, err)
			}
			b.stop()
			b.work.wait()
		})
	}
}

// A caller that waits for the same object does not lose it, and one that arrives while it is being
// removed starts over.
func TestUndoneForNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.slow = 5 * time.Second
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		others := make(chan error, 2)
		ask := func() {
			_, err := b.must(t.Context(), "a", wants("x"), b.build)
			others <- err
		}
		go ask()
		synctest.Wait()
		if _, err := b.must(short, "a", wants("x"), b.build); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if err := <-others; err != nil || b.builds != 1 || len(b.undone) > 0 {
			t.Errorf("%d builds, undone %v: %v", b.builds, b.undone, err)
		}

		b.deaf = true
		late, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		time.AfterFunc(2*time.Second, ask)
		if _, err := b.must(late, "a", wants("x"), b.build); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if err := <-others; err != nil || b.builds != 3 || len(b.undone) != 1 {
			t.Errorf("%d builds, undone %v: %v", b.builds, b.undone, err)
		}
		b.stop()
		b.work.wait()
	})
}

// A call shows the work that is done for it as soon as that starts.
func TestStagesOfWorkAreSeenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		ctx, log := stage.With(t.Context(), nil)
		for _, c := range []string{"mine", "joined"} {
			_, mine, err := b.join(ctx, "a", &cri.Container{}, func(ctx context.Context, c *creation) error {
				stage.Next(ctx, "build")
				time.Sleep(time.Minute)
				return nil
			})
			synctest.Wait()
			if spans := log.Spans(); err != nil || mine != (c == "mine") || len(spans) == 0 || spans[0].Name != "build" {
				t.Errorf("%s: %v; the call's stages are %v", c, err, spans)
			}
			ctx, log = stage.With(t.Context(), nil)
		}
		var ts tasks
		ts.start(context.Background(), &b.work)
		go func() {
			if err := ts.do(ctx, "a", func(ctx context.Context) error {
				stage.Next(ctx, "task")
				time.Sleep(time.Minute)
				return nil
			}); err != nil {
				t.Errorf("task: %v", err)
			}
		}()
		synctest.Wait()
		if spans := log.Spans(); len(spans) == 0 || spans[0].Name != "task" {
			t.Errorf("task: the call's stages are %v", spans)
		}
		time.Sleep(time.Hour)
	})
}
