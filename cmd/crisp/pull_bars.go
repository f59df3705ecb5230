package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/pullapi"
	"github.com/crisp-cri/crisp/internal/pulls"
	"golang.org/x/term"
)

// How often a pull's progress is printed: bars are redrawn, lines accumulate.
const (
	barInterval  = 200 * time.Millisecond
	lineInterval = time.Second
)

// pullBar is the width of a layer's bar in characters.
const pullBar = 40

// showPull shows the progress of an image's pull until ctx ends. If the runtime does not report it,
// showPull prints less.
func (c *cli) showPull(ctx context.Context, image, progress string) {
	f := terminal(c.stderr)
	bars := progress == "auto" && f != nil
	if progress == "none" || progress == "auto" && !bars {
		return
	}
	conn, err := c.dialRuntime()
	if err != nil {
		return
	}
	defer conn.Close()
	r := pullapi.Request{Image: image, Interval: lineInterval}
	if bars {
		r.Interval = barInterval
	}
	drawn := &drawing{w: c.stderr, width: width(f)}
	_ = pullapi.Watch(ctx, conn, r, func(list []pulls.Pull) error {
		switch {
		case len(list) == 0:
		case bars:
			drawn.show(list[0].Bars(pullBar))
		default:
			fmt.Fprintf(c.stderr, "%s: %s\n", list[0].Image, strings.TrimSpace(list[0].String()+" "+list[0].Source()))
		}
		return nil
	})
	drawn.show(nil)
}

// width returns the number of columns of a terminal.
func width(f *os.File) int {
	if f != nil {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return 80
}

// A drawing is a block of lines on a terminal, which is redrawn in place.
type drawing struct {
	w     io.Writer
	width int // of the terminal, in columns
	lines int
}

// mostLines is the maximum number of lines: a line that has scrolled away cannot be redrawn.
const mostLines = 16

// show replaces the previous lines. The control sequences are those of ECMA-48: cursor up, and
// erase to the end of the screen.
func (d *drawing) show(lines []string) {
	if d.lines > 0 {
		fmt.Fprintf(d.w, "\x1b[%dA\x1b[J", d.lines)
	}
	if n := len(lines); n > mostLines { // the last line summarizes all
		lines = lines[n-mostLines:]
	}
	for _, line := range lines {
		fmt.Fprintf(d.w, "%.*s\n", d.width, line) // a line that wraps would become two
	}
	d.lines = len(lines)
}
