package terminal

import (
	"slices"
	"strings"
)

// A Frame has the changes since the previous one.
type Frame struct {
	Rows    int           `json:"rows"`              // of the screen
	Past    [][]Run       `json:"past,omitempty"`    // lines that scrolled off the top, oldest first
	Lines   map[int][]Run `json:"lines,omitempty"`   // changed rows, by number from 0
	Other   bool          `json:"other"`             // the alternate screen is shown, which has no past
	Cleared bool          `json:"cleared,omitempty"` // the past of earlier frames was erased
}

// A Run is text of one style: the text, and its CSS classes separated by blanks, such as "bold f1
// b4" (foreground and background, colours 0 to 15) and "cursor".
type Run [2]string

// Frame returns the changes since its last call.
func (t *Terminal) Frame() Frame {
	f := Frame{Rows: t.rows, Other: t.other != nil, Lines: map[int][]Run{}, Cleared: t.cleared}
	for _, l := range t.past {
		f.Past = append(f.Past, l.runs(-1))
	}
	t.past, t.cleared = nil, false
	x := min(t.x, t.columns-1)
	if x != t.shownX || t.y != t.shownY || t.hidden != t.shownHidden {
		t.lines[t.y].dirty = true
		if t.shownY < t.rows {
			t.lines[t.shownY].dirty = true
		}
	}
	t.shownX, t.shownY, t.shownHidden = x, t.y, t.hidden
	for y := range t.lines {
		if !t.lines[y].dirty {
			continue
		}
		cursor := -1
		if y == t.y && !t.hidden {
			cursor = x
		}
		f.Lines[y], t.lines[y].dirty = t.lines[y].runs(cursor), false
	}
	return f
}

// Changed reports whether the next Frame would have any changes.
func (t *Terminal) Changed() bool {
	if len(t.past) > 0 || t.cleared || min(t.x, t.columns-1) != t.shownX || t.y != t.shownY || t.hidden != t.shownHidden {
		return true
	}
	return slices.ContainsFunc(t.lines, func(l line) bool { return l.dirty })
}

// runs returns the line's cells without trailing blanks. The cell in the column cursor is a
// separate run; -1 means no cursor.
func (l line) runs(cursor int) []Run {
	end := 0
	for i, c := range l.cells {
		if c.r != 0 && c.r != ' ' || c.style != (style{}) || i == cursor {
			end = i + 1
		}
	}
	list := []Run{}
	var text strings.Builder
	for i := 0; i < end; i++ {
		c := l.cells[i]
		if c.r == 0 {
			c.r = ' '
		}
		text.WriteRune(c.r)
		for _, m := range c.marks {
			if m != 0 {
				text.WriteRune(m)
			}
		}
		if i+1 == end || l.cells[i+1].style != c.style || i == cursor || i+1 == cursor {
			class := c.style.class()
			if i == cursor {
				class = strings.TrimLeft(class+" cursor", " ")
			}
			list = append(list, Run{text.String(), class})
			text.Reset()
		}
	}
	return list
}
