// Package waterfall joins the two halves of a pod's timeline (Join), measures (Cover) and draws them
// (Draw). Only clients do: crispd does not link it.
package waterfall

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/crisp-cri/crisp/internal/timeline"
)

// Join inserts the runtime's stages into the agent's stages that waited for them: those with the
// same name and container that overlap. Others are added to the list, unless an agent's stage
// covers their time: the agent knows what it has probed or executed.
func Join(agent, runtime []timeline.Stage, now time.Time) []timeline.Stage {
	list := slices.Clone(agent)
	for _, r := range runtime {
		i := slices.IndexFunc(list, func(s timeline.Stage) bool {
			return s.Name == r.Name && (s.Container == r.Container || r.Container == "") && overlap(s, r, now) > 0
		})
		switch {
		case i >= 0:
			s := &list[i]
			s.Parts = append(slices.Clone(s.Parts), r.Parts...)
			s.Detail = cmp.Or(r.Detail, s.Detail)
		case len(agent) == 0 || r.Name == timeline.FirstOutput:
			list = append(list, r)
		}
	}
	timeline.Sort(list)
	return list
}

// ended returns when a stage ended: now, if it is open.
func ended(s timeline.Stage, now time.Time) time.Time { return s.Begin.Add(s.Took(now)) }

func overlap(a, b timeline.Stage, now time.Time) time.Duration {
	begin, end := timeline.Later(a.Begin, b.Begin), ended(a, now)
	if other := ended(b, now); other.Before(end) {
		end = other
	}
	return end.Sub(begin)
}

// Cover returns how much of the time between two moments the stages account for, from 0 to 1.
func Cover(list []timeline.Stage, from, to time.Time) float64 {
	if !to.After(from) {
		return 1
	}
	sorted := slices.Clone(list)
	timeline.Sort(sorted)
	var covered time.Duration
	at := from
	for _, s := range sorted {
		begin, end := timeline.Later(s.Begin, at), ended(s, to)
		if end.After(to) {
			end = to
		}
		if end.After(begin) {
			covered += end.Sub(begin)
			at = end
		}
	}
	return float64(covered) / float64(to.Sub(from))
}

// Sum returns how long each label took between two moments, longest first. Overlapping stages
// count in full.
func Sum(list []timeline.Stage, from, to time.Time) []stage.Share {
	var spans []stage.Span
	for _, s := range list {
		spans = append(spans, stage.Span{Name: s.Label(), Begin: s.Begin, End: s.End})
	}
	shares := stage.Shares(spans, from, to)
	slices.SortStableFunc(shares, func(a, b stage.Share) int { return cmp.Compare(b.Took, a.Took) })
	return shares
}

// Deepest returns the innermost open part of s, or s itself: "cni.slow" of a sandbox.
func Deepest(s timeline.Stage) timeline.Stage {
	for i := len(s.Parts) - 1; i >= 0; i-- {
		if s.Parts[i].End.IsZero() {
			return Deepest(s.Parts[i])
		}
	}
	return s
}

// Longest returns the part of s that took at least half of its time, at any depth, or s itself
// if none did.
func Longest(s timeline.Stage, now time.Time) timeline.Stage {
	for _, p := range s.Parts {
		if 2*p.Took(now) >= s.Took(now) {
			return Longest(p, now)
		}
	}
	return s
}

// A Row is a line of a waterfall.
type Row struct {
	Label string // indented
	Begin string // since the start
	Took  string
	Bar   string
	Note  string // the error, or the detail
}

// shown and shownPart are the minimum shares of the whole for drawing a stage and a part.
const (
	shown     = 0.01
	shownPart = 0.02
)

// Draw draws stages as a waterfall: a line for each stage, its bar between two moments, with the
// parts that took long below it. A stage still under way ends at to. Short stages are summed up
// in the last line, except failed ones, those under way, and the first output, which people look
// for.
func Draw(list []timeline.Stage, from, to time.Time, width int) []Row {
	var rows []Row
	var short int
	var sum time.Duration
	for _, s := range list {
		if s.Begin.After(to) {
			continue
		}
		if s.Took(to) < time.Duration(shown*float64(to.Sub(from))) && s.Err == "" && !s.End.IsZero() && s.Name != timeline.FirstOutput {
			short++
			sum += s.Took(to)
			continue
		}
		rows = draw(rows, s, from, to, width, 0)
	}
	if short > 0 {
		rows = append(rows, Row{Label: fmt.Sprintf("(%d short ones)", short), Took: Brief(sum), Bar: strings.Repeat(" ", width)})
	}
	return rows
}

func draw(rows []Row, s timeline.Stage, from, to time.Time, width, depth int) []Row {
	label := s.Label()
	if s.Times > 1 {
		label += fmt.Sprintf(" ×%d", s.Times)
	}
	took := Brief(s.Took(to))
	if s.End.IsZero() {
		took += "…"
	}
	note := s.Detail
	if s.Err != "" {
		note = s.Err
	}
	rows = append(rows, Row{strings.Repeat("  ", depth) + label, Brief(s.Begin.Sub(from)), took, bar(s, from, to, width), note})
	for _, p := range s.Parts {
		if p.Took(to) >= time.Duration(shownPart*float64(to.Sub(from))) {
			rows = draw(rows, p, from, to, width, depth+1)
		}
	}
	return rows
}

// bar draws the position of s: " ==== ".
func bar(s timeline.Stage, from, to time.Time, width int) string {
	whole := to.Sub(from)
	if whole <= 0 || width < 1 {
		return ""
	}
	column := func(t time.Time) int {
		return int(min(max(float64(t.Sub(from))/float64(whole), 0), 1) * float64(width))
	}
	begin := min(column(s.Begin), width-1)
	end := max(column(ended(s, to)), begin+1)
	return strings.Repeat(" ", begin) + strings.Repeat("=", end-begin) + strings.Repeat(" ", width-end)
}

// Brief returns a duration with two or three digits: "0.8 ms", "12 ms", "1.2 s", "3 m 20 s".
func Brief(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Brief(-d)
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1000)
	case d < 100*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%d m %d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d h %d m", int(d.Hours()), int(d.Minutes())%60)
}
