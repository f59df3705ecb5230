package page

import (
	"bytes"
	"io"
	"unicode/utf8"
)

// visible returns text without characters that control how it is shown: control characters
// become their pictures ("␛" for ESC, U+2400 and on), and those that change the direction of
// text, invisible ones and invalid UTF-8 become "�" (U+FFFD). Tabs and line feeds stay.
func visible(text []byte) []byte { return bytes.Map(shown, text) }

func shown(r rune) rune {
	switch {
	case r == '\n' || r == '\t':
		return r
	case r < 0x20:
		return 0x2400 + r
	case r == 0x7f:
		return 0x2421
	case r >= 0x80 && r < 0xa0, // C1: 0x9b begins a control sequence, as ESC [ does
		r == 0x061c, r == 0x200b, r == 0x200e, r == 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2060 && r <= 0x2069, r == 0xfeff,
		r >= 0xfff9 && r <= 0xfffb, r >= 0xe0000 && r <= 0xe007f:
		return utf8.RuneError
	}
	return r
}

// obeyed is shown for a terminal, which obeys control characters: it drops only what shown replaces
// besides.
func obeyed(r rune) rune {
	if r >= 0xa0 && shown(r) != r {
		return -1
	}
	return r
}

// A cleaner forwards what is written to it, made visible. A character may be split between two
// writes.
type cleaner struct {
	to       io.Writer
	terminal bool   // to is a terminal, which obeys control characters
	partial  []byte // first bytes of a split character
}

func (c *cleaner) Write(p []byte) (int, error) {
	text := append(c.partial, p...)
	end := len(text)
	for i := max(0, end-utf8.UTFMax+1); i < end; i++ {
		if utf8.RuneStart(text[i]) && !utf8.FullRune(text[i:]) {
			end = i
			break
		}
	}
	as := shown
	if c.terminal {
		as = obeyed
	}
	_, err := c.to.Write(bytes.Map(as, text[:end]))
	c.partial = append([]byte(nil), text[end:]...)
	return len(p), err
}
