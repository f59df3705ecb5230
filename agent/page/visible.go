package page

import (
	"io"
	"unicode/utf8"
)

// visible returns text in which nothing steers what shows it: control characters are their
// pictures ("␛" for ESC), and what turns the direction of text, cannot be seen or is no UTF-8
// is "�". Tabs and line feeds stay.
func visible(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		out = utf8.AppendRune(out, shown(r))
		i += n
	}
	return out
}

func shown(r rune) rune {
	switch {
	case r == '\n' || r == '\t':
		return r
	case r < 0x20:
		return 0x2400 + r
	case r == 0x7f:
		return 0x2421
	case r >= 0x80 && r < 0xa0, // C1: 0x9b begins a sequence as ESC [ does
		r == 0x061c, r == 0x200b, r == 0x200e, r == 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2060 && r <= 0x2069, r == 0xfeff,
		r >= 0xfff9 && r <= 0xfffb, r >= 0xe0000 && r <= 0xe007f:
		return utf8.RuneError
	}
	return r
}

// A cleaner makes visible what is written to it. A character may come in two pieces.
type cleaner struct {
	to      io.Writer
	partial []byte // the beginning of a character
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
	_, err := c.to.Write(visible(text[:end]))
	c.partial = append([]byte(nil), text[end:]...)
	return len(p), err
}
