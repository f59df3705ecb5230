// Package terminal emulates the screen of an xterm: it reads the output of a program, and returns
// the changes in a form that a browser can show as text.
//
//	program ── bytes ──▶ Write ──▶ lines of cells ──▶ Frame ──▶ runs of text with a class
//
// Its memory is bounded whatever the program writes: the size of the screen, the lines that have
// scrolled away since the last Frame, the parameters of a sequence. It answers no queries, so that
// no output can become input of the program, and it has neither a title nor a clipboard. It drops
// unknown sequences.
//
// The sequences are those of ECMA-48 and of xterm's "XTerm Control Sequences".
package terminal

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The bounds of a screen, in cells, and of lines that have scrolled away since the last Frame.
const (
	MinColumns, MaxColumns = 20, 240
	MinRows, MaxRows       = 5, 80
	maxPast                = 200
)

const (
	maxParams = 64   // bytes of a sequence's parameters
	maxNumber = 9999 // of one parameter
)

// A state of the parser.
type state uint8

const (
	text      state = iota
	escape          // after ESC
	control         // in a control sequence, after ESC [
	ignored         // in a sequence that is too long or malformed
	char            // before the last character of an ESC sequence
	str             // in a string (OSC, DCS, SOS, PM, APC), which is dropped: a title, an image
	strEscape       // in a string, after ESC
)

// A Terminal is a screen. It is not safe for concurrent use.
type Terminal struct {
	columns, rows int
	lines         []line
	other         []line // the main screen, while the alternate one is shown; else nil
	past          []line // scrolled away since the last Frame, the newest last
	x, y          int    // the cursor; x may equal columns: the next character begins a line
	top, bottom   int    // the first and the last row of the scrolling region
	style         style
	saved         struct {
		x, y  int
		style style
	}
	hidden, appKeys, bracketed bool // modes: hidden cursor, application cursor keys, bracketed paste

	state   state
	params  []byte
	partial []byte // the first bytes of an incomplete character

	shownX, shownY int // position of the cursor in the last Frame
	shownHidden    bool
	cleared        bool // the past was erased (ED 3) since the last Frame
}

// New returns a Terminal with a blank screen of this size, within the bounds of this package.
func New(columns, rows int) *Terminal {
	t := &Terminal{columns: columns, rows: rows}
	t.columns, t.rows = bounded(columns, rows)
	t.reset()
	return t
}

func bounded(columns, rows int) (int, int) {
	return min(max(columns, MinColumns), MaxColumns), min(max(rows, MinRows), MaxRows)
}

func (t *Terminal) reset() {
	t.style, t.lines, t.other = style{}, nil, nil
	for range t.rows {
		t.lines = append(t.lines, t.blank())
	}
	t.x, t.y, t.top, t.bottom = 0, 0, 0, t.rows-1
	t.hidden, t.appKeys, t.bracketed = false, false, false
	t.save()
}

// Write implements io.Writer. It never fails.
func (t *Terminal) Write(p []byte) (int, error) {
	in := append(t.partial, p...)
	for len(in) > 0 && utf8.FullRune(in) {
		r, n := utf8.DecodeRune(in)
		t.take(r)
		in = in[n:]
	}
	t.partial = append([]byte(nil), in...)
	return len(p), nil
}

func (t *Terminal) take(r rune) {
	const esc, bel, st, can, sub = 0x1b, 0x07, 0x9c, 0x18, 0x1a
	if r == can || r == sub { // cancels any sequence
		t.state = text
		return
	}
	switch t.state {
	case str:
		switch r {
		case bel, st:
			t.state = text
		case esc:
			t.state = strEscape
		}
		return
	case strEscape: // ESC \ ends the string; any other sequence ends it too, and takes effect
		t.escaped(r)
		return
	case char:
		t.state = text
		return
	case escape:
		t.escaped(r)
		return
	}
	switch {
	case r == esc:
		t.state = escape
	case r < 0x20:
		t.controlChar(r)
	case t.state == text:
		t.put(r)
	case r >= 0x40 && r <= 0x7e:
		if t.state == control {
			t.sequence(r)
		}
		t.state = text
	case len(t.params) < maxParams && r < 0x40:
		t.params = append(t.params, byte(r))
	default:
		t.state = ignored
	}
}

// escaped handles the character after ESC.
func (t *Terminal) escaped(r rune) {
	t.state = text
	switch r {
	case '[':
		t.state, t.params = control, t.params[:0]
	case ']', 'P', 'X', '^', '_':
		t.state = str
	case '(', ')', '*', '+', '-', '.', '/', ' ', '#', '%':
		t.state = char
	case '7':
		t.save()
	case '8':
		t.restore()
	case 'D':
		t.feed()
	case 'E':
		t.x = 0
		t.feed()
	case 'M':
		t.back()
	case 'c':
		t.reset()
	}
}

func (t *Terminal) controlChar(r rune) {
	switch r {
	case '\r':
		t.x = 0
	case '\n', '\v', '\f':
		t.feed()
	case '\b':
		t.x = max(min(t.x, t.columns-1)-1, 0)
	case '\t':
		t.x = min((t.x/8+1)*8, t.columns-1)
	}
}

// put shows a character if it is printable and does not change the direction of text.
func (t *Terminal) put(r rune) {
	if unicode.Is(unicode.M, r) { // a combining mark for the previous character
		c := &t.lines[t.y].cells[max(min(t.x, t.columns)-1, 0)]
		for i := range c.marks {
			if c.marks[i] == 0 {
				c.marks[i] = r
				break
			}
		}
		t.lines[t.y].dirty = true
		return
	}
	if !unicode.IsPrint(r) {
		return
	}
	if t.x >= t.columns {
		t.x = 0
		t.feed()
	}
	t.lines[t.y].cells[t.x] = cell{r: r, style: t.style}
	t.lines[t.y].dirty = true
	t.x++
}

// numbers returns a sequence's parameters, at least one.
func numbers(params string) []int {
	var list []int
	for word := range strings.SplitSeq(params, ";") {
		n, _ := strconv.Atoi(word) // an empty one is 0
		list = append(list, min(max(n, 0), maxNumber))
	}
	return list
}

// sequence executes the control sequence with the parameters t.params.
func (t *Terminal) sequence(final rune) {
	params := string(t.params)
	if rest, ok := strings.CutPrefix(params, "?"); ok {
		if final == 'h' || final == 'l' {
			for _, mode := range numbers(rest) {
				t.mode(mode, final == 'h')
			}
		}
		return
	}
	if strings.Trim(params, "0123456789;") != "" {
		return
	}
	p := numbers(params)
	n, x := max(p[0], 1), min(t.x, t.columns-1)
	second := 0
	if len(p) > 1 {
		second = p[1]
	}
	switch final {
	case 'A':
		t.move(x, t.y-n)
	case 'B', 'e':
		t.move(x, t.y+n)
	case 'C', 'a':
		t.move(x+n, t.y)
	case 'D':
		t.move(x-n, t.y)
	case 'E':
		t.move(0, t.y+n)
	case 'F':
		t.move(0, t.y-n)
	case 'G', '`':
		t.move(n-1, t.y)
	case 'd':
		t.move(x, n-1)
	case 'H', 'f':
		t.move(max(second, 1)-1, n-1)
	case 'm':
		t.style.set(p)
	case 's':
		t.save()
	case 'u':
		t.restore()
	case 'r':
		t.setRegion(n-1, second)
	default:
		t.edit(final, p[0], n, x)
	}
}

// edit executes sequences that erase, insert and scroll. first is the first parameter, n the same
// but at least 1, and x the column of the cursor.
func (t *Terminal) edit(final rune, first, n, x int) {
	inRegion := t.y >= t.top && t.y <= t.bottom
	switch final {
	case 'J':
		t.eraseScreen(first, x)
	case 'K':
		t.eraseLine(first, x)
	case 'X':
		t.erase(t.y, x, x+n)
	case 'P':
		t.lines[t.y].shift(x, -n, t.style)
	case '@':
		t.lines[t.y].shift(x, n, t.style)
	case 'L':
		if inRegion {
			t.scroll(t.y, -n)
		}
	case 'M':
		if inRegion {
			t.scroll(t.y, n)
		}
	case 'S':
		t.scroll(t.top, n)
	case 'T':
		t.scroll(t.top, -n)
	}
}

// mode sets or resets a private mode of DEC or xterm.
func (t *Terminal) mode(mode int, on bool) {
	switch mode {
	case 1:
		t.appKeys = on
	case 25:
		t.hidden = !on
	case 2004:
		t.bracketed = on
	case 47, 1047, 1049:
		t.alternate(on, mode == 1049)
	}
}

// Size returns the size of the screen.
func (t *Terminal) Size() (columns, rows int) { return t.columns, t.rows }
