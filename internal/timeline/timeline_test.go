package timeline_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/crisp-cri/crisp/internal/timeline"
	"github.com/google/go-cmp/cmp"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// at returns a stage from one second to another; if to is negative, it is running.
func at(name, container string, from, to int, parts ...timeline.Stage) timeline.Stage {
	s := timeline.Stage{Name: name, Container: container, Begin: t0.Add(time.Duration(from) * time.Second), Parts: parts}
	if to >= 0 {
		s.End = t0.Add(time.Duration(to) * time.Second)
	}
	return s
}

func second(n int) time.Time { return t0.Add(time.Duration(n) * time.Second) }

var web = timeline.Pod{UID: "u", Namespace: "default", Name: "web"}

// A Recorder shows current stages up to now, and the spans of a call as the parts of its stage; the
// spans of an action (BeginFlat) are stages themselves.
func TestBook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b timeline.Recorder
		ctx, log := stage.With(context.Background(), nil)
		run := b.Begin(web, timeline.Stage{Name: "sandbox"}, log)
		stage.Next(ctx, "namespaces")
		time.Sleep(time.Second)
		stage.Next(ctx, "cni")
		end := stage.Enter(ctx, "cni.slow")
		time.Sleep(time.Second)
		list := b.Of("u")
		if len(list) != 1 || list[0].Deepest().Name != "cni.slow" || list[0].Took(time.Now()) != 2*time.Second {
			t.Errorf("while the call runs: %+v", list)
		}
		if going := b.Going(); len(going) != 1 || going[web][0].Name != "sandbox" {
			t.Errorf("current stages: %v", going)
		}
		end()
		run.End("", "no address")
		run.End("", "") // only the first End counts
		time.Sleep(time.Second)
		ctx, log = stage.With(context.Background(), nil)
		start := b.BeginFlat(web, timeline.Stage{Container: "app"}, log)
		stage.Next(ctx, "volumes")
		time.Sleep(time.Second)
		stage.Next(ctx, "pull")
		time.Sleep(time.Second)
		log.Stop()
		start.End("", "no such image")
		var text []string
		for _, s := range b.Of("u") {
			text = append(text, fmt.Sprintf("%s %v %q %d", s.Label(), s.Took(time.Now()), s.Err, len(s.Parts)))
		}
		want := []string{`sandbox 2s "no address" 2`, `volumes app 1s "" 0`, `pull app 1s "no such image" 0`}
		if d := cmp.Diff(want, text); d != "" {
			t.Error(d)
		}
		if len(b.Going()) != 0 {
			t.Errorf("stages still going on: %v", b.Going())
		}
		b.Forget("u")
		if b.Of("u") != nil || len(b.Pods()) != 0 {
			t.Error("a removed pod still has a record")
		}
		var none *timeline.Open
		none.End("", "")
	})
}

// A pod's waits are reported repeatedly; each wait is one stage, from its first report to its last.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b timeline.Recorder
		probe, backOff := timeline.Stage{Name: "readiness probe", Container: "app"}, timeline.Stage{Name: "back-off", Container: "app", Detail: "once"}
		again := backOff
		again.Detail = "twice"
		for _, list := range [][]timeline.Stage{{backOff}, {again, probe}, {probe}, {probe}, {}} {
			b.Wait(web, list)
			time.Sleep(time.Second)
		}
		var text []string
		for _, s := range b.Of("u") {
			text = append(text, fmt.Sprint(s.Label(), " ", s.Took(time.Now()), " ", s.Detail))
		}
		if d := cmp.Diff([]string{"back-off app 2s twice", "readiness probe app 3s "}, text); d != "" {
			t.Error(d)
		}
		b.Wait(web, []timeline.Stage{backOff})
		time.Sleep(time.Second)
		b.EndWait("u", "back-off", "other")
		b.EndWait("u", "back-off", "app")
		b.EndWait("nobody", "back-off", "app")
		time.Sleep(time.Second)
		if list := b.Of("u"); len(list) != 3 || list[2].Took(time.Now()) != time.Second {
			t.Errorf("ended: %+v", list)
		}
	})
}

// Neither probes nor repeated restarts fill a record; a pod's first stages, which are its start, are
// kept.
func TestBookIsBounded(t *testing.T) {
	var b timeline.Recorder
	for i := range 1000 {
		b.Begin(web, at(fmt.Sprint("start ", i), "app", i, i+1), nil)
	}
	list := b.Of("u")
	if n := len(list); n > 200 || list[0].Name != "start 0" || list[n-1].Name != "start 999" {
		t.Errorf("%d stages from %s to %s", n, list[0].Name, list[n-1].Name)
	}
	b.Forget("u")
	for i := range 1000 {
		b.Repeat(web, at("exec", "app", i, i+1))
		b.Repeat(web, at("exec", "db", i, i+1))
	}
	if list := b.Of("u"); len(list) != 2 || list[0].Times != 1000 || list[0].Took(t0) != 1000*time.Second {
		t.Errorf("repeated: %+v", list)
	}
	for i := range 5000 {
		b.Begin(timeline.Pod{UID: fmt.Sprint(i)}, at("sandbox", "", 0, 1), nil)
	}
	if pods := b.Pods(); len(pods) > 1000 || pods[len(pods)-1].UID != "4999" {
		t.Errorf("%d pods are kept", len(pods))
	}
	long := strings.Repeat("ä", 1<<20)
	b.Begin(web, timeline.Stage{Name: "long", Detail: long}, nil).End(long, long)
	if s := b.Of("u")[0]; len(s.Detail) > 2000 || len(s.Err) > 2000 || !strings.HasSuffix(s.Err, "ä…") {
		t.Errorf("a text of %d bytes is kept", len(s.Err))
	}
	b.Forget("u")
	ctx, log := stage.With(context.Background(), nil)
	o := b.Begin(web, timeline.Stage{Name: "pull"}, log)
	for range 200 {
		stage.Next(ctx, "layers")
		stage.Enter(ctx, "layers.unpack")()
	}
	o.End("", "")
	if n := len(b.Of("u")[0].Parts); n > 50 {
		t.Errorf("%d parts are kept", n)
	}
}

// The runtime's stages become parts of the agent's; those without one of the agent's stand alone.
func TestJoin(t *testing.T) {
	agent := []timeline.Stage{at("volumes", "", 0, 1), at("sandbox", "", 1, 5), at("pull", "app", 5, 9), at("start", "app", 9, 10)}
	runtime := []timeline.Stage{
		at("sandbox", "", 1, 5, at("cni", "", 2, 5)), at("pull", "", 5, 9, at("layers", "", 6, 9)), at("pull", "", 90, 99),
		at("start", "app", 9, 10), at("start", "other", 9, 10), at("first output", "app", 10, 12),
	}
	runtime[1].Detail = "12 MB"
	want := []timeline.Stage{
		at("volumes", "", 0, 1), at("sandbox", "", 1, 5, at("cni", "", 2, 5)), at("pull", "app", 5, 9, at("layers", "", 6, 9)),
		at("start", "app", 9, 10), at("first output", "app", 10, 12),
	}
	want[2].Detail = "12 MB"
	if d := cmp.Diff(want, timeline.Join(agent, runtime, second(20))); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(runtime[:2], timeline.Join(nil, runtime[:2], second(20))); d != "" {
		t.Errorf("for a kubelet's pod, without an agent: %s", d)
	}
}

func TestCover(t *testing.T) {
	for _, test := range []struct {
		list []timeline.Stage
		want float64
	}{
		{nil, 0},
		{[]timeline.Stage{at("a", "", 0, 10)}, 1},
		{[]timeline.Stage{at("a", "", -5, 5)}, 0.5},
		{[]timeline.Stage{at("a", "", 2, 4), at("b", "", 3, 6)}, 0.4},
		{[]timeline.Stage{at("a", "", 8, -1)}, 0.2},
		{[]timeline.Stage{at("a", "", 20, 30)}, 0},
	} {
		if got := timeline.Cover(test.list, t0, second(10)); got != test.want {
			t.Errorf("%v: %v, want %v", test.list, got, test.want)
		}
	}
	if timeline.Cover(nil, t0, t0) != 1 {
		t.Error("an empty time is not covered")
	}
}

func TestSum(t *testing.T) {
	list := []timeline.Stage{at("volumes", "", 0, 1), at("pull", "app", 1, 4), at("volumes", "", 4, 6), at("probe", "app", 6, -1)}
	want := []stage.Share{{Name: "probe app", Took: 4 * time.Second}, {Name: "volumes", Took: 3 * time.Second}, {Name: "pull app", Took: 3 * time.Second}}
	if d := cmp.Diff(want, timeline.Sum(list, t0, second(10))); d != "" {
		t.Error(d)
	}
}

// Longest returns the innermost part that took at least half of the time.
func TestLongest(t *testing.T) {
	s := at("sandbox", "", 0, 10, at("namespaces", "", 0, 1), at("cni", "", 1, 10, at("cni.bridge", "", 1, 2), at("cni.slow", "", 2, 10)))
	if got := s.Longest(second(10)).Name; got != "cni.slow" {
		t.Errorf("%s took the longest", got)
	}
	even := at("sandbox", "", 0, 9, at("a", "", 0, 3), at("b", "", 3, 6), at("c", "", 6, 9))
	if got := even.Longest(second(9)).Name; got != "sandbox" {
		t.Errorf("%s took the longest", got)
	}
}

func TestDraw(t *testing.T) {
	list := []timeline.Stage{
		at("volumes", "", 0, 1), at("sandbox", "", 1, 5, at("namespaces", "", 1, 1), at("cni", "", 1, 5)),
		at("readiness probe", "app", 5, -1), at("later", "", 30, 31), at("config", "", 5, 5), at("config", "", 6, 6), at("first output", "app", 6, 6),
	}
	list[1].Err, list[2].Times, list[2].Detail = "no address", 3, "statuscode: 500"
	var lines []string
	for _, r := range timeline.Draw(list, t0, second(10), 10) {
		lines = append(lines, strings.Join([]string{r.Label, r.Begin, r.Took, "[" + r.Bar + "]", r.Note}, "|"))
	}
	want := []string{
		"volumes|0.0 ms|1.0 s|[=         ]|",
		"sandbox|1.0 s|4.0 s|[ ====     ]|no address",
		"  cni|1.0 s|4.0 s|[ ====     ]|",
		"readiness probe app ×3|5.0 s|5.0 s…|[     =====]|statuscode: 500",
		"first output app|6.0 s|0.0 ms|[      =   ]|",
		"(2 short ones)||0.0 ms|[          ]|",
	}
	if d := cmp.Diff(want, lines); d != "" {
		t.Error(d)
	}
}

func TestBrief(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "-1.0 s", 0: "0.0 ms", 834 * time.Microsecond: "0.8 ms", 12 * time.Millisecond: "12 ms", 1234 * time.Millisecond: "1.2 s",
		200 * time.Second: "3 m 20 s", 25 * time.Hour: "25 h 0 m",
	} {
		if got := timeline.Brief(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}
