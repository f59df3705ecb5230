package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// A plot has a panel for each row of the many phase, in a grid. Lengths are in pixels.
const (
	panelWidth  = 300
	panelHeight = 200
	panelMargin = 44
	panelsInRow = 3
)

// colours are those of Okabe and Ito, which colour-blind readers can distinguish.
var colours = []string{"#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}

// svg plots the p50 of each curve over the number of pods, which has a logarithmic axis; the other axis begins at 0.
func (r *report) svg() string {
	curves, counts := r.curves()
	var titles []string
	for _, c := range curves {
		if !slices.Contains(titles, c.title) {
			titles = append(titles, c.title)
		}
	}
	columns := r.columns(manyGroup)
	rows := (len(titles) + panelsInRow - 1) / panelsInRow
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n",
		panelsInRow*panelWidth, rows*panelHeight+24)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	for i, title := range titles {
		of := slices.DeleteFunc(slices.Clone(curves), func(c curve) bool { return c.title != title })
		fmt.Fprintf(&b, `<g transform="translate(%d %d)">`+"\n", i%panelsInRow*panelWidth, i/panelsInRow*panelHeight)
		panel(&b, title, of, counts, columns)
		b.WriteString("</g>\n")
	}
	for i, name := range columns {
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n",
			panelMargin+i*120, rows*panelHeight+14, colours[i%len(colours)], html.EscapeString(name))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func panel(b *strings.Builder, title string, curves []curve, counts []int, columns []string) {
	const left, top, right, bottom = panelMargin, 24, panelWidth - 12, panelHeight - 24
	most := 0.0
	for _, c := range curves {
		most = max(most, slices.Max(c.p50))
	}
	most = roundUp(most)
	x := func(pods int) float64 {
		if len(counts) < 2 {
			return left
		}
		first, last := math.Log(float64(counts[0])), math.Log(float64(counts[len(counts)-1]))
		return left + (math.Log(float64(pods))-first)/(last-first)*(right-left)
	}
	y := func(v float64) float64 { return bottom - v/most*(bottom-top) }

	fmt.Fprintf(b, `<text x="%d" y="14" font-weight="bold">%s</text>`+"\n", left, html.EscapeString(title))
	fmt.Fprintf(b, `<path d="M%d %dV%dH%d" fill="none" stroke="#666"/>`+"\n", left, top, bottom, right)
	for _, v := range []float64{0, most / 2, most} {
		fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", left-4, y(v)+4, number(v))
	}
	for _, n := range counts {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%d</text>`+"\n", x(n), bottom+14, n)
	}
	for _, c := range curves {
		colour := colours[slices.Index(columns, c.name)%len(colours)]
		var points []string
		for i := range c.pods {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(c.pods[i]), y(c.p50[i])))
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>`+"\n", x(c.pods[i]), y(c.p50[i]), colour)
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s"/>`+"\n", strings.Join(points, " "), colour)
	}
}

// roundUp returns the next number not smaller than v with one significant digit, or 1.5 or 2.5
// times a power of ten.
func roundUp(v float64) float64 {
	if v <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 1.5, 2, 2.5, 3, 4, 5, 6, 8} {
		if v <= m*unit {
			return m * unit
		}
	}
	return 10 * unit
}
