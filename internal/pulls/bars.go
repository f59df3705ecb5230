package pulls

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Bar draws a fraction with width characters: "[=====> ]".
func Bar(f float64, width int) string {
	inner := max(width-2, 1)
	n := int(min(max(f, 0), 1) * float64(inner))
	bar := strings.Repeat("=", n)
	if n < inner {
		bar += ">" + strings.Repeat(" ", inner-n-1)
	}
	return "[" + bar + "]"
}

// Bars draws the pull, a line for each layer and one for all of them.
func (p Pull) Bars(width int) []string {
	var lines []string
	for _, l := range p.Layers {
		var f float64
		switch {
		case l.State == Here || l.State == Done || l.State == Unpacking:
			f = 1
		case l.Size > 0:
			f = float64(l.Bytes) / float64(l.Size)
		}
		lines = append(lines, fmt.Sprintf("%s %s %s", shortDigest(l.Digest), Bar(f, width), l.text()))
	}
	text := p.Image + ": " + p.String()
	if from := p.Source(); from != "" {
		text += ", " + from
	}
	return append(lines, text)
}

func (l Layer) text() string {
	if l.State == Downloading && l.Size > 0 {
		return fmt.Sprintf("%s of %s", Size(l.Bytes), Size(l.Size))
	}
	return l.State
}

// shortDigest returns as much of a digest as people compare.
func shortDigest(digest string) string {
	_, hex, ok := strings.Cut(digest, ":")
	if !ok {
		hex = digest
	}
	return hex[:min(len(hex), 12)]
}

// Write lists pulls under way, with their layers, and recently ended ones.
func Write(w io.Writer, list []Pull, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "IMAGE\tSTAGE\tFOR\tBYTES\tPROGRESS\tFROM\tWAITERS")
	for _, p := range list {
		took, progress, stage := now.Sub(p.Begun), p.String(), p.Stage
		if !p.Ended.IsZero() {
			took, progress, stage = p.Ended.Sub(p.Begun), "done", "-"
			if p.Err != "" {
				progress = "failed"
			}
		}
		from := p.From
		if p.Mirror {
			from += " (mirror)"
		}
		waiters := fmt.Sprint(p.Waiters)
		if len(p.For) > 0 {
			waiters += " (" + strings.Join(p.For, ", ") + ")"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d/%d\t%s\t%s\t%s\n", p.Image, dash(stage), took.Round(time.Millisecond), p.Bytes, p.Total, progress, dash(from), waiters)
		if p.Ended.IsZero() {
			for _, l := range p.Layers {
				fmt.Fprintf(t, "  %s\t%s\t\t%d/%d\t\t\t\n", shortDigest(l.Digest), l.State, l.Bytes, l.Size)
			}
		}
	}
	return t.Flush()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
