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
	"github.com/crisp-cri/crisp/internal/waterfall"
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
		if len(list) != 1 || waterfall.Deepest(list[0]).Name != "cni.slow" || list[0].Took(time.Now()) != 2*time.Second {
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
