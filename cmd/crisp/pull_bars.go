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

// How often a pull is shown: bars move, lines are kept.
const (
	barInterval  = 200 * time.Millisecond
	lineInterval = time.Second
)

// pullBar is how wide the bar of a layer is.
const pullBar = 40

// showPull shows how far the pull of an image is, until ctx ends. A runtime that does not
// tell is no error: there is less to see.
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

// width is how many columns a terminal has.
func width(f *os.File) int {
	if f != nil {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return 80
}

// A drawing is some lines on a terminal, each drawn over the one before.
type drawing struct {
	w     io.Writer
	width int // of the terminal, in columns
	lines int
}

// mostLines is how many lines are drawn at most: what scrolls away cannot be drawn over.
const mostLines = 16

// show draws lines over those before. Control sequences are of ECMA-48: up, and erase to the
// end of the screen.
func (d *drawing) show(lines []string) {
	if d.lines > 0 {
		fmt.Fprintf(d.w, "\x1b[%dA\x1b[J", d.lines)
	}
	if n := len(lines); n > mostLines { // the last line is about all of them
		lines = lines[n-mostLines:]
	}
	for _, line := range lines {
		fmt.Fprintf(d.w, "%.*s\n", d.width, line) // one that wraps would be two
	}
	d.lines = len(lines)
}
