package timeline

import (
	"fmt"
	"strings"
	"time"
)

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
func Draw(list []Stage, from, to time.Time, width int) []Row {
	var rows []Row
	var short int
	var sum time.Duration
	for _, s := range list {
		if s.Begin.After(to) {
			continue
		}
		if s.Took(to) < time.Duration(shown*float64(to.Sub(from))) && s.Err == "" && !s.End.IsZero() && s.Name != FirstOutput {
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

func draw(rows []Row, s Stage, from, to time.Time, width, depth int) []Row {
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
func bar(s Stage, from, to time.Time, width int) string {
	whole := to.Sub(from)
	if whole <= 0 || width < 1 {
		return ""
	}
	column := func(t time.Time) int {
		return int(min(max(float64(t.Sub(from))/float64(whole), 0), 1) * float64(width))
	}
	begin := min(column(s.Begin), width-1)
	end := max(column(s.until(to)), begin+1)
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
