package terminal

import "slices"

// A line is a row of cells.
type line struct {
	cells []cell
	dirty bool // changed since the last Frame
}

// A cell is a character with at most two combining marks.
type cell struct {
	r     rune // 0 = blank
	marks [2]rune
	style style
}

func (t *Terminal) blank() line {
	l := line{cells: make([]cell, t.columns), dirty: true}
	for i := range l.cells {
		l.cells[i].style = t.style.background()
	}
	return l
}

// shift moves the cells from column x by n columns to the right, or to the left if n is negative.
// Cells that leave the line are lost.
func (l *line) shift(x, n int, s style) {
	size := len(l.cells)
	room := min(max(n, -n), size-x)
	empty := make([]cell, room)
	for i := range empty {
		empty[i].style = s.background()
	}
	if n > 0 {
		l.cells = slices.Insert(l.cells, x, empty...)[:size]
	} else {
		l.cells = append(slices.Delete(l.cells, x, x+room), empty...)
	}
	l.dirty = true
}

func (t *Terminal) move(x, y int) {
	t.x, t.y = min(max(x, 0), t.columns-1), min(max(y, 0), t.rows-1)
}

func (t *Terminal) save() { t.saved.x, t.saved.y, t.saved.style = t.x, t.y, t.style }

func (t *Terminal) restore() {
	t.move(t.saved.x, t.saved.y)
	t.style = t.saved.style
}

// setRegion sets the scrolling region (DECSTBM) from row top, which counts from 0, to row bottom,
// which counts from 1; a bottom of 0 means the last row.
func (t *Terminal) setRegion(top, bottom int) {
	if bottom == 0 || bottom > t.rows {
		bottom = t.rows
	}
	if top < bottom-1 {
		t.top, t.bottom = top, bottom-1
		t.move(0, 0)
	}
}

func (t *Terminal) feed() {
	if t.y == t.bottom {
		t.scroll(t.top, 1)
	} else if t.y < t.rows-1 {
		t.y++
	}
}

func (t *Terminal) back() {
	if t.y == t.top {
		t.scroll(t.top, -1)
	} else if t.y > 0 {
		t.y--
	}
}

// scroll moves the lines between row from and the bottom of the region up by n, or down if n is
// negative. Lines that leave the top of the main screen go to the past.
func (t *Terminal) scroll(from, n int) {
	for range min(max(n, -n), t.bottom-from+1) {
		if n < 0 {
			t.lines = slices.Insert(slices.Delete(t.lines, t.bottom, t.bottom+1), from, t.blank())
			continue
		}
		gone := t.lines[from]
		t.lines = slices.Insert(slices.Delete(t.lines, from, from+1), t.bottom, t.blank())
		if from == 0 && t.other == nil {
			if t.past = append(t.past, gone); len(t.past) > maxPast {
				t.past = slices.Delete(t.past, 0, len(t.past)-maxPast)
			}
		}
	}
	for i := from; i <= t.bottom; i++ {
		t.lines[i].dirty = true
	}
}

// erase blanks the cells of row y from column from to before column to.
func (t *Terminal) erase(y, from, to int) {
	for x := from; x < min(to, t.columns); x++ {
		t.lines[y].cells[x] = cell{style: t.style.background()}
	}
	t.lines[y].dirty = true
}

func (t *Terminal) eraseLine(what, x int) {
	switch what {
	case 0:
		t.erase(t.y, x, t.columns)
	case 1:
		t.erase(t.y, 0, x+1)
	case 2:
		t.erase(t.y, 0, t.columns)
	}
}

func (t *Terminal) eraseScreen(what, x int) {
	if what == 3 {
		t.past, t.cleared = nil, true
		return
	}
	for y := range t.rows {
		if what == 2 || what == 0 && y > t.y || what == 1 && y < t.y {
			t.erase(y, 0, t.columns)
		}
	}
	if what < 2 {
		t.eraseLine(what, x)
	}
}

// alternate switches to a blank alternate screen or back to the main one. cursor means that the
// cursor is also saved and restored (mode 1049).
func (t *Terminal) alternate(on, cursor bool) {
	if on == (t.other != nil) {
		return
	}
	if on {
		if cursor {
			t.save()
		}
		t.other, t.lines = t.lines, nil
		for range t.rows {
			t.lines = append(t.lines, t.blank())
		}
	} else {
		t.lines, t.other = t.other, nil
		if cursor {
			t.restore()
		}
	}
	t.top, t.bottom = 0, t.rows-1
	t.dirtyAll()
}

func (t *Terminal) dirtyAll() {
	for i := range t.lines {
		t.lines[i].dirty = true
	}
}

// Resize changes the size of the screen, within the bounds of this package.
func (t *Terminal) Resize(columns, rows int) {
	columns, rows = bounded(columns, rows)
	if columns == t.columns && rows == t.rows {
		return
	}
	above := max(t.y-rows+1, 0) // lines to drop at the top, so that the cursor's line stays
	t.columns, t.rows = columns, rows
	t.lines = t.fit(t.lines, above)
	if t.other != nil {
		t.other = t.fit(t.other, 0)
	}
	t.top, t.bottom = 0, rows-1
	t.move(t.x, t.y-above)
	t.dirtyAll()
}

func (t *Terminal) fit(lines []line, above int) []line {
	lines = lines[above:]
	lines = lines[:min(len(lines), t.rows)]
	for i := range lines {
		l := &lines[i]
		l.cells = l.cells[:min(len(l.cells), t.columns)]
		l.cells = append(l.cells, make([]cell, t.columns-len(l.cells))...)
	}
	for len(lines) < t.rows {
		lines = append(lines, line{cells: make([]cell, t.columns), dirty: true})
	}
	return lines
}
