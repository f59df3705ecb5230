package waterfall_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/crisp-cri/crisp/internal/timeline"
	"github.com/crisp-cri/crisp/internal/waterfall"
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
	if d := cmp.Diff(want, waterfall.Join(agent, runtime, second(20))); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(runtime[:2], waterfall.Join(nil, runtime[:2], second(20))); d != "" {
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
		if got := waterfall.Cover(test.list, t0, second(10)); got != test.want {
			t.Errorf("%v: %v, want %v", test.list, got, test.want)
		}
	}
	if waterfall.Cover(nil, t0, t0) != 1 {
		t.Error("an empty time is not covered")
	}
}

func TestSum(t *testing.T) {
	list := []timeline.Stage{at("volumes", "", 0, 1), at("pull", "app", 1, 4), at("volumes", "", 4, 6), at("probe", "app", 6, -1)}
	want := []stage.Share{{Name: "probe app", Took: 4 * time.Second}, {Name: "volumes", Took: 3 * time.Second}, {Name: "pull app", Took: 3 * time.Second}}
	if d := cmp.Diff(want, waterfall.Sum(list, t0, second(10))); d != "" {
		t.Error(d)
	}
}

// Longest returns the innermost part that took at least half of the time.
func TestLongest(t *testing.T) {
	s := at("sandbox", "", 0, 10, at("namespaces", "", 0, 1), at("cni", "", 1, 10, at("cni.bridge", "", 1, 2), at("cni.slow", "", 2, 10)))
	if got := waterfall.Longest(s, second(10)).Name; got != "cni.slow" {
		t.Errorf("%s took the longest", got)
	}
	even := at("sandbox", "", 0, 9, at("a", "", 0, 3), at("b", "", 3, 6), at("c", "", 6, 9))
	if got := waterfall.Longest(even, second(9)).Name; got != "sandbox" {
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
	for _, r := range waterfall.Draw(list, t0, second(10), 10) {
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
		if got := waterfall.Brief(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}
