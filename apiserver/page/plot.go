package page

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/crisp-cri/crisp/internal/timeline"
	"github.com/crisp-cri/crisp/internal/waterfall"
)

// A plot is one or two curves over the last minutes (plotted), in SVG's coordinates.
type plot struct {
	Title, Now, Most string // Now: the last value; Most: the value of the upper edge
	Width, Height    int
	Lines            []line
}

type line struct {
	Class  string
	Points string // "x,y x,y"
}

const (
	plotWidth  = 300
	plotHeight = 60
)

// plots returns the plots of a pod: CPU, memory and network; nil without samples.
func plots(samples []sample, now time.Time) []plot {
	if len(samples) == 0 {
		return nil
	}
	last := samples[len(samples)-1]
	cpu := func(s sample) float64 { return s.cpu }
	memory := func(s sample) float64 { return s.memory }
	rx, tx := func(s sample) float64 { return s.rx }, func(s sample) float64 { return s.tx }
	return []plot{
		newPlot("CPU", cores, cores(last.cpu), 0.01, samples, now, cpu),
		newPlot("Memory", size, size(last.memory), 1e6, samples, now, memory),
		newPlot("Network", perSecond, "in "+perSecond(last.rx)+", out "+perSecond(last.tx), 1e3, samples, now, rx, tx),
	}
}

// newPlot draws one curve of the samples for each function of values. least is the minimum of the
// upper edge's value.
func newPlot(title string, word func(float64) string, last string, least float64, samples []sample, now time.Time, values ...func(sample) float64) plot {
	top := least
	for _, value := range values {
		for _, s := range samples {
			top = max(top, value(s))
		}
	}
	top = ceiling(top)
	p := plot{Title: title, Now: last, Most: word(top), Width: plotWidth, Height: plotHeight}
	for i, value := range values {
		var points strings.Builder
		before := time.Time{}
		end := func() {
			if points.Len() > 0 {
				p.Lines = append(p.Lines, line{Class: fmt.Sprintf("line%d", i), Points: strings.TrimSpace(points.String())})
			}
			points.Reset()
		}
		for _, s := range samples {
			if !before.IsZero() && s.at.Sub(before) > 5*sampleEvery { // no page was open in between
				end()
			}
			before = s.at
			x := plotWidth * (1 - float64(now.Sub(s.at))/float64(plotted))
			y := (plotHeight - 2) * (1 - value(s)/top)
			fmt.Fprintf(&points, "%.1f,%.1f ", max(x, 0), y+1)
		}
		end()
	}
	return p
}

// ceiling rounds v, which must be positive, up to 1, 2 or 5 times a power of ten.
func ceiling(v float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 5} {
		if v <= f*unit {
			return f * unit
		}
	}
	return 10 * unit
}

func cores(v float64) string {
	if v < 1 {
		return fmt.Sprintf("%.0f m", 1000*v)
	}
	return fmt.Sprintf("%.2f", v)
}

func size(v float64) string { return pulls.Size(int64(v)) }

func perSecond(v float64) string { return pulls.Size(int64(v)) + "/s" }

// A span is a row of a waterfall. Its bar is between 0 and spanWidth.
type span struct {
	Label, Begin, Took, Note string
	Depth, X, Width          int
	Class                    string
}

const spanWidth = 300

// drawStages returns the rows that "crisp describe" draws of a pod's start.
func drawStages(stages []timeline.Stage, from, to time.Time) []span {
	var list []span
	for _, row := range waterfall.Draw(stages, from, to, spanWidth) {
		bar := strings.TrimLeft(row.Bar, " ")
		label := strings.TrimLeft(row.Label, " ")
		word, _, _ := strings.Cut(label, " ")
		list = append(list, span{
			Label: label, Begin: row.Begin, Took: row.Took, Note: row.Note, Depth: min((len(row.Label)-len(label))/2, 4),
			X: len(row.Bar) - len(bar), Width: strings.Count(bar, "="), Class: kindOf(word),
		})
	}
	return list
}

// kindOf returns the CSS class of a stage.
func kindOf(word string) string {
	switch word, _, _ = strings.Cut(word, "."); word {
	case "sandbox", "cni", "namespaces":
		return "net"
	case "pull", "registry", "layers", "sync":
		return "pull"
	case "back-off", "predecessor":
		return "bad"
	case "readiness", "startup", "init":
		return "wait"
	}
	return "run"
}

// strip returns a waterfall for one line: the top-level stages that are long enough to be seen.
func strip(stages []timeline.Stage, from, to time.Time) []span {
	var list []span
	for _, s := range drawStages(stages, from, to) {
		if s.Depth == 0 && s.Width > 0 {
			list = append(list, s)
		}
	}
	return list
}
