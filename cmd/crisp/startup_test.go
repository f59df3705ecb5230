package main

import (
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/apiserver/startup"
	"github.com/crisp-cri/crisp/internal/timeline"
)

// A block of lines is redrawn in place. A line that is too long for the terminal is cut, and of too
// many lines only the last are drawn.
func TestDrawing(t *testing.T) {
	var b strings.Builder
	d := &drawing{w: &b, width: 5}
	d.show([]string{"one", "toolong"})
	d.show([]string{"two"})
	d.show(nil)
	if got, want := b.String(), "one\ntoolo\n\x1b[2A\x1b[Jtwo\n\x1b[1A\x1b[J"; got != want {
		t.Errorf("drawn %q, want %q", got, want)
	}
	b.Reset()
	d.show(strings.Fields(strings.Repeat("x ", 100) + "last"))
	if got := b.String(); strings.Count(got, "\n") > 30 || !strings.HasSuffix(got, "last\n") {
		t.Errorf("drawn %q", got)
	}
}

// The stages in which a pod spent most of its start, the longest first.
func TestMostly(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := startup.Report{Seen: t0, Ready: t0.Add(20 * time.Second)}
	for i, name := range []string{"a", "b", "c", "d"} {
		r.Stages = append(r.Stages, timeline.Stage{Name: name, Begin: t0, End: t0.Add(time.Duration(i) * time.Second)})
	}
	if got, want := mostly(r, t0.Add(time.Hour)), "d 3.0 s, c 2.0 s, b 1.0 s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := mostly(startup.Report{Seen: t0}, t0); got != "" {
		t.Errorf("of nothing: %q", got)
	}
}

func TestUsageOfProgress(t *testing.T) {
	for _, args := range [][]string{{"pull"}, {"pull", "a", "b"}, {"pull", "a", "--progress", "x"}, {"image", "pull"}, {"why"}, {"why", "a", "b"}, {"top", "startup", "x"}} {
		var out, errs strings.Builder
		if code := run(t.Context(), args, nil, &out, &errs); code != exitUsage {
			t.Errorf("%v: exit code %d, %s", args, code, errs.String())
		}
	}
}
