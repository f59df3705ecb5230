// Package pulls describes the progress of image pulls, in the form in which crispd reports it
// (JSON) and in words. It depends on neither images nor CRI, so that both sides of a socket can
// import it.
package pulls

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// The states of a layer, in their order.
const (
	Waiting     = "waiting"     // not requested yet
	Downloading = "downloading" // and being unpacked at the same time
	Unpacking   = "unpacking"   // completely received
	Done        = "done"
	Here        = "here" // it was on the node before the pull
)

// A Pull is one pull under way, or recently ended.
type Pull struct {
	Image    string    `json:"image"`            // its full name
	From     string    `json:"from,omitempty"`   // the place it comes from: "mirror.example:5000/library"; "" = none has answered yet
	Mirror   bool      `json:"mirror,omitempty"` // From is not the registry in the name
	Stage    string    `json:"stage"`            // registry, layers or sync; "" before and after
	Begun    time.Time `json:"begun"`
	Ended    time.Time `json:"ended,omitzero"`
	Err      string    `json:"error,omitempty"` // why it failed
	Waiters  int       `json:"waiters"`         // calls waiting for it
	For      []string  `json:"for,omitempty"`   // the pods among them, as namespace/name
	Bytes    int64     `json:"bytes"`           // received, as stored in the registry
	Total    int64     `json:"total"`           // of Bytes in the end: layers that are here do not count; 0 = not known yet
	Rate     float64   `json:"rate"`            // recent bytes per second
	Layers   []Layer   `json:"layers,omitempty"`
	AllKnown bool      `json:"allKnown,omitempty"` // Total counts each layer: an archive may not give a size
}

// A Layer is one layer of a pull.
type Layer struct {
	Digest string `json:"digest"` // of the blob in the registry
	Size   int64  `json:"size"`   // of the blob; negative = not known
	Bytes  int64  `json:"bytes"`  // received of Size
	State  string `json:"state"`
}

// Fraction returns the received share, from 0 to 1; ok reports whether that is known.
func (p Pull) Fraction() (f float64, ok bool) {
	if !p.AllKnown {
		return 0, false
	}
	if p.Total == 0 { // all layers are here
		return 1, true
	}
	return min(float64(p.Bytes)/float64(p.Total), 1), true
}

// Left returns how long the rest will take at the current rate; ok reports whether that can be
// estimated.
func (p Pull) Left() (left time.Duration, ok bool) {
	if f, known := p.Fraction(); !known || p.Rate < 1 || f == 1 {
		return 0, false
	}
	seconds := float64(p.Total-p.Bytes) / p.Rate
	if seconds > (1000 * time.Hour).Seconds() {
		return 0, false
	}
	return time.Duration(seconds * float64(time.Second)), true
}

// String describes the progress of the pull: "43 %, 12 MB/s, 1 m left".
func (p Pull) String() string {
	f, ok := p.Fraction()
	switch {
	case !ok && p.Bytes == 0:
		return "asking the registry"
	case !ok:
		return Size(p.Bytes) + ", " + Size(int64(p.Rate)) + "/s"
	case f == 1:
		return "100 %, unpacking"
	}
	text := fmt.Sprintf("%.0f %%, %s/s", math.Floor(100*f), Size(int64(p.Rate)))
	if left, ok := p.Left(); ok {
		text += ", " + Brief(left) + " left"
	}
	return text
}

// Source describes where it comes from: "from the mirror HOST", or "from HOST".
func (p Pull) Source() string {
	switch {
	case p.From == "":
		return ""
	case p.Mirror:
		return "from the mirror " + p.From
	}
	return "from " + p.From
}

// Size returns a number of bytes with at most three digits, in powers of 1000 as network
// rates and registries give them: "12 MB".
func Size(n int64) string {
	units := []string{"B", "kB", "MB", "GB", "TB", "PB", "EB"}
	f, i := float64(max(n, 0)), 0
	for f >= 999.5 && i < len(units)-1 {
		f /= 1000
		i++
	}
	if i > 0 && f < 9.95 {
		return fmt.Sprintf("%.1f %s", f, units[i])
	}
	return fmt.Sprintf("%.0f %s", f, units[i])
}

// Brief returns a duration for people: "45 s", "3 m", "2 h".
func Brief(d time.Duration) string {
	switch {
	case d < 90*time.Second:
		return fmt.Sprintf("%.0f s", max(1, d.Seconds()))
	case d < 90*time.Minute:
		return fmt.Sprintf("%.0f m", d.Minutes())
	}
	return fmt.Sprintf("%.0f h", d.Hours())
}

// Of returns the pull that the pod, namespace/name, waits for: the earliest.
func Of(list []Pull, pod string) (Pull, bool) {
	var found []Pull
	for _, p := range list {
		if p.Ended.IsZero() && slices.Contains(p.For, pod) {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return Pull{}, false
	}
	return slices.MinFunc(found, func(a, b Pull) int {
		return cmp.Or(a.Begun.Compare(b.Begun), strings.Compare(a.Image, b.Image))
	}), true
}

// Same reports whether p pulls image: its full name, or the name as a user writes it.
func (p Pull) Same(image string) bool {
	return image == p.Image || strings.HasSuffix(p.Image, "/"+image) || strings.HasSuffix(p.Image, "/"+image+":latest") || p.Image == image+":latest"
}

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

// Bars draws the pull, a line for each layer and one for all of them. A narrow terminal cuts their ends.
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
	return append(lines, strings.TrimSpace(p.String()+": "+p.Image+" "+p.Source()))
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
		fmt.Fprintf(t, "%s\t%s\t%s\t%d/%d\t%s\t%s\t%s\n", p.Image, cmp.Or(stage, "-"), took.Round(time.Millisecond), p.Bytes, p.Total, progress, cmp.Or(from, "-"), waiters)
		if p.Ended.IsZero() {
			for _, l := range p.Layers {
				fmt.Fprintf(t, "  %s\t%s\t\t%d/%d\t\t\t\n", shortDigest(l.Digest), l.State, l.Bytes, l.Size)
			}
		}
	}
	return t.Flush()
}
