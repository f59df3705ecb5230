package page

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/docker/go-units"
	v1 "k8s.io/api/core/v1"

	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/crisp-cri/crisp/internal/timeline"
	"github.com/crisp-cri/crisp/internal/waterfall"
)

// A plot is one or two curves over the last minutes (plotted), in SVG's coordinates.
type plot struct {
	Title, Now, Most string // Now: the last value; Most: the value of the upper edge
	Width, Height    int
	Limit            string // the pod's; "" without one
	LimitY           string // where it is
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

// plots returns the plots of a pod: CPU, memory and network; nil without samples. limit is the pod's.
func plots(samples []sample, limit sample, now time.Time) []plot {
	if len(samples) == 0 {
		return nil
	}
	cpu := newPlot("CPU", cores, 0.01, limit.cpu, 1, samples, now, func(s sample) float64 { return s.cpu })
	bytes := newPlot("Memory", memory, 1<<20, limit.memory, 1<<20, samples, now, func(s sample) float64 { return s.memory })
	net := newPlot("Network", perSecond, 1e3, 0, 1, samples, now, func(s sample) float64 { return s.rx }, func(s sample) float64 { return s.tx })
	net.Now = "in " + net.Now + ", out " + perSecond(samples[len(samples)-1].tx)
	return []plot{cpu, bytes, net}
}

// limits returns the CPU and memory that all containers of a pod may use together; 0 if one has no
// limit.
func limits(pod *v1.Pod) (limit sample) {
	of := func(name v1.ResourceName) (sum float64) {
		for _, c := range pod.Spec.Containers {
			q := c.Resources.Limits[name]
			if q.IsZero() {
				return 0
			}
			sum += q.AsApproximateFloat64()
		}
		return sum
	}
	return sample{cpu: of(v1.ResourceCPU), memory: of(v1.ResourceMemory)}
}

// newPlot draws one curve of the samples for each function of values, and the limit unless it is 0. The
// upper edge is a round number of units, and least or the limit at least.
func newPlot(title string, word func(float64) string, least, limit, unit float64, samples []sample, now time.Time, values ...func(sample) float64) plot {
	top := max(least, limit)
	for _, value := range values {
		for _, s := range samples {
			top = max(top, value(s))
		}
	}
	top = ceiling(top/unit) * unit
	y := func(v float64) float64 { return (plotHeight-2)*(1-v/top) + 1 }
	p := plot{Title: title, Now: word(values[0](samples[len(samples)-1])), Most: word(top), Width: plotWidth, Height: plotHeight}
	if limit > 0 {
		p.Limit, p.LimitY = word(limit), fmt.Sprintf("%.1f", y(limit))
	}
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
			if !before.IsZero() && s.at.Sub(before) > 3*idleEvery { // the runtime did not answer
				end()
			}
			before = s.at
			x := plotWidth * (1 - float64(now.Sub(s.at))/float64(plotted))
			fmt.Fprintf(&points, "%.1f,%.1f ", max(x, 0), y(value(s)))
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
	switch m := fmt.Sprintf("%.0f m", 1000*v); {
	case m == "0 m":
		return "0"
	case v < 1:
		return m
	}
	return fmt.Sprintf("%.2f", v)
}

// memory has the units of limits, which people compare it with.
func memory(v float64) string {
	text := units.CustomSize("%.1f %s", v, 1024, []string{"B", "KiB", "MiB", "GiB", "TiB"})
	return strings.Replace(text, ".0 ", " ", 1)
}

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
